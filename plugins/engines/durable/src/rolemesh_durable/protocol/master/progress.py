"""The progress of the job: the committed step, the step that ranks may run to, and the job's end."""

from __future__ import annotations

from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.grants import GrantSize
from rolemesh_durable.protocol.metrics.line_cuts import MOST_CUTS, STEPWISE, LinePace, last_end

__all__ = ["Progress"]

LAST_CHECKPOINT_S = 600.0
"""Seconds that a finished job waits for its last checkpoint."""
WARNED_S = 5.0
"""Seconds that it waits if an agent or the master reports that it cannot write the checkpoint."""
LINES_S = 15.0
"""Seconds that a checkpoint, or a finished job, waits for the lines of metrics before it. Some may be lost for good."""
LINES_AHEAD = 1024
"""Maximum number of steps that ranks may be ahead of the last written line of metrics: the disk may be full."""


class Progress:
    """Follows the steps that ranks have finished.

    Lines of metrics are durable up to `published`. With `held` the master can write none at present. Ranks may run up
    to `granted`.
    """

    def __init__(self, context: MasterContext) -> None:
        config = context.config
        self._context = context
        self._size = GrantSize(config)
        self._pace = LinePace() if config.metrics_every is None else None
        self._knows_published = False
        self.granted = -1
        self.published = config.origin_step
        self.held = False
        self._limited = False
        self._done_at: float | None = None

    def written(self, event: e.Published) -> None:
        """Note that lines of metrics are durable, or cannot be written."""
        self.published, self.held = max(self.published, event.step), event.held
        self._knows_published = True

    def lines_are_out(self, step: int, since: float) -> bool:
        """Return True if all lines that end up to `step` are written, or the wait since `since` was too long."""
        return self.published >= self.last_line(step) or self._context.now >= since + LINES_S

    def last_line(self, step: int) -> int:
        """Return the newest step, up to `step`, at which a line ends. The job's last step is one."""
        state = self._context.state
        return step if step == state.end else last_end(state.cuts, step)

    def roll_back(self, step: int) -> None:
        """Go back to `step` with the whole job."""
        self.granted = step

    @property
    def held_back(self) -> bool:
        """True if every rank waits at the end of its grant, which an extension or unwritten lines limit."""
        return self._limited and all(rank.finished >= self.granted for rank in self._context.state.ranks.values())

    def turn(self) -> None:
        """Commit the newest possible step, grant more, and end the job when it is done."""
        if self._context.state.phase == "running":
            self._commit()
            self._grant()
        self._end_if_done()

    def _commit(self) -> None:
        state = self._context.state
        committed = min((rank.durable for rank in state.ranks.values()), default=-1)
        if committed > state.committed:
            self._committed(committed)

    def _committed(self, step: int) -> None:
        self._context.state.committed = step
        self._context.want(e.Committed(step))

    def most_granted(self) -> int | None:
        """Return the newest step that any master has let a rank run to; None while that is unknown."""
        state, config = self._context.state, self._context.config
        if state.busy:
            return None
        # Earlier masters have granted more, and may still do so, but not to an agent that has reported this epoch.
        reports = [agent.report for agent in state.agents.values() if agent.state in ("starting", "up")]
        heard = [report for report in reports if report is not None and report.epoch >= config.epoch]
        if len(heard) < len(reports) or not state.are(state.ranks, "running", "done"):
            return None
        reached = (*(rank.finished for rank in state.ranks.values()), *state.reached.values(), config.origin_step + 1)
        return max(self.granted, state.stop.step, *reached, *(report.granted for report in heard))

    def _grant(self) -> None:
        state = self._context.state
        if 0 <= state.pause <= self.granted:
            return  # a larger grant would not make waiting ranks faster
        end = state.end
        finished = min((rank.finished for rank in state.ranks.values()), default=state.committed)
        ahead = self._size.ahead(finished, self.granted, self._context.now)
        self._cut_lines(finished)
        # Ranks keep their lines of metrics in memory until these are written.
        unwritten = max(ahead, LINES_AHEAD) + state.cuts[-1][1]
        end = min(end, state.pause) if state.pause >= 0 else end
        able = min(end, finished + ahead)
        limit = min((limit() for limit in self._context.hooks.limit), default=end)
        until = min(able, self.published + unwritten, limit)
        self._limited = until < able
        if until - self.granted >= max(1, ahead // 2) or until in (end, limit):
            self.granted = max(self.granted, until)

    def _cut_lines(self, finished: int) -> None:
        """Let lines cover more or fewer steps, beyond all steps that ranks may run now and beyond all written lines."""
        state, newest = self._context.state, self.most_granted()
        if self._pace is None or newest is None or not self._knows_published or len(state.cuts) >= MOST_CUTS:
            return
        last, every = state.cuts[-1]
        begin = max(newest, self.published, last, self._context.config.origin_step + STEPWISE) + 1
        if (wanted := self._pace.wanted(finished, every, self._context.now)) != every and begin <= state.end:
            self._context.tell(t.LinesCut(begin, wanted))

    def _end_if_done(self) -> None:
        context, state = self._context, self._context.state
        if state.phase != "running" or not state.settled or not state.are(state.ranks, "done"):
            self._done_at = None
            return
        last = state.end
        # The agents' end loses everything in their memory. So the job waits for the last lines and the last checkpoint,
        # up to a limit.
        self._done_at = context.now if self._done_at is None or self.held else self._done_at
        if not self.lines_are_out(last, self._done_at) or self._checkpoint_is_to_come(last, self._done_at):
            return
        if state.persisted == last > state.committed:
            # Replicas may be behind, but the last step is on disk.
            self._committed(last)
        verdicts = [f"{key.in_words}: {r.verdict}" for key, r in state.ranks.items() if r.verdict]
        context.stop("failed" if verdicts else "done", "\n".join(verdicts[:1]), context.config.stop_grace_s)

    def _checkpoint_is_to_come(self, last: int, since: float) -> bool:
        state, plan = self._context.state, self._context.config.job.snapshots
        if not (state.snapshots or plan.last) or state.persisted >= last:
            return False
        if state.committed >= last and last < state.layout.whole_from(self._context.config.job.graph):
            return False  # the step can have no checkpoint
        given_up = any(a.report is not None and a.report.given_up >= last for a in state.agents.values())
        if given_up and plan.last:
            return False  # each rank writes its part once
        return self._context.now < since + (WARNED_S if given_up or "" in self._context.warnings else LAST_CHECKPOINT_S)
