"""How far the job is: what is committed, how far ranks may go, and whether it is done."""

from __future__ import annotations

from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.context import MasterContext

__all__ = ["Progress"]

LAST_SET_S = 600.0
"""How long a finished job waits for its last snapshot to be persisted."""
WARNED_S = 5.0
"""The same where an agent, or the master itself, says that it cannot be."""
LINES_S = 15.0
"""How long a snapshot, and a finished job, wait for the lines of metrics before it: some may be lost for good."""
LINES_AHEAD = 1024
"""How many steps ranks may be ahead of the last line of metrics that is written: the disk may be full."""


class Progress:
    """Follows what ranks have finished. Lines of metrics are durable up to `published`; with `held` none can be
    written for now. Ranks may go up to `granted`."""

    def __init__(self, context: MasterContext) -> None:
        outline = context.outline
        self._context = context
        self.granted = -1
        self.published = outline.origin_step
        self.held = False
        self._limited = False
        self._released = outline.origin_step if outline.rehearsed else outline.steps
        self._done_at: float | None = None

    def written(self, event: e.Published) -> None:
        """Lines of metrics are durable, or cannot be."""
        self.published, self.held = max(self.published, event.step), event.held

    def release(self, step: int) -> None:
        """Whoever rehearses failures lets ranks run up to `step`."""
        self._released = max(self._released, step)

    def lines_are_out(self, step: int, since: float) -> bool:
        """Whether all lines up to `step` are written, or have been waited for since `since` in vain."""
        return self.published >= step or self._context.now >= since + LINES_S

    def roll_back(self, step: int) -> None:
        """The whole job goes back to `step`."""
        self.granted = step

    @property
    def held_back(self) -> bool:
        """Whether every rank waits at the end of its grant for a failure that a rehearsal is going to inject."""
        return self._limited and all(rank.finished >= self.granted for rank in self._context.state.ranks.values())

    def turn(self) -> None:
        """Commit what can be, grant more, and end the job when it is done."""
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

    def _grant(self) -> None:
        outline = self._context.outline
        ahead = max(outline.grant, 2 * outline.snapshots.every if outline.snapshots.enabled else 1)
        # Ranks keep their lines of metrics in memory until these are written.
        unwritten = max(ahead, LINES_AHEAD) + outline.metrics_every
        snapshots = min(outline.steps - 1, self._context.state.committed + ahead)
        until = min(snapshots, self.published + unwritten, self._released)
        self._limited = until < snapshots
        if until - self.granted >= max(1, ahead // 4) or until in (outline.steps - 1, self._released):
            self.granted = max(self.granted, until)

    def _end_if_done(self) -> None:
        context, state = self._context, self._context.state
        if state.phase != "running" or state.busy or not state.are(state.ranks, "done"):
            self._done_at = None
            return
        last = context.outline.steps - 1
        # What is only in memory goes with the agents: the last lines and the last set are waited for, within reason.
        self._done_at = context.now if self._done_at is None or self.held else self._done_at
        if not self.lines_are_out(last, self._done_at) or self._set_is_to_come(last, self._done_at):
            return
        if state.persisted == last > state.committed:
            # Replicas may be behind, but the last step is on disk.
            self._committed(last)
        context.stop("done", "", context.outline.stop_grace_s)

    def _set_is_to_come(self, last: int, since: float) -> bool:
        state = self._context.state
        if not state.snapshots or state.persisted >= last:
            return False
        given_up = any(a.report is not None and a.report.given_up >= last for a in state.agents.values())
        return self._context.now < since + (WARNED_S if given_up or "" in self._context.warnings else LAST_SET_S)
