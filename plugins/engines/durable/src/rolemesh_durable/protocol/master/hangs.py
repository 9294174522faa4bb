"""Hangs: when so long nothing has moved that somebody must be at fault, and how much longer who works may take.

`hang.after_s` cannot be right for every operator. One that is judged while it computes may only be slow, so the same
operator of a role is allowed twice as long each time that it is judged in the same step: it comes through in the end,
and its ladder lasts for it. What it has proved to need it keeps, also if it comes through after its verdict, before its
process is killed. A rank that is stopped, or that waits, gains nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from rolemesh.api.failures import Failure
from rolemesh_durable.protocol import hang
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.rank_key import RankKey

__all__ = ["HangWatch"]

STACKS_S = 5.0
"""How long the verdict of a hang waits for the culprit's stacks."""
LOOK_S = 1.0
"""How often it is asked who is at fault, while that one may take longer."""
NO_STEP_S = 60.0
"""Seconds without a finished step after which the master names the ranks that report progress."""
PATIENCE = 2.0
"""How much longer an operator may take than it was allowed when it was judged, or than it has taken."""


class _Slow(NamedTuple):
    """A computing rank that was judged to hang, and may only be slow.

    It holds the newest verdict, the rank's report at that time, and `since`: when the operator began, or when a rank
    last moved, whichever was earlier.
    """

    verdict: hang.HangVerdict
    since: float
    report: m.RankReport


class HangWatch:
    """Follows whether anything moves."""

    def __init__(self, context: MasterContext, progress: Progress) -> None:
        self._context, self._progress = context, progress
        self._moved = self._stepped = self._longest = 0.0
        self._looked = float("-inf")
        self._suspect: tuple[hang.HangVerdict, float] | None = None
        self._slow: _Slow | None = None

    def begin(self) -> None:
        """This master begins to look."""
        self._moved = self._stepped = self._context.now

    def stepped(self) -> None:
        """A rank has finished a step."""
        now = self._context.now
        self._longest, self._stepped = max(self._longest, now - self._stepped), now

    def warnings(self) -> tuple[str, ...]:
        """Name the ranks that report progress while no rank finishes a step.

        Hang detection leaves such ranks alone. The warning comes after `NO_STEP_S`, or after `hang.after_s` if that is
        shorter, but not before twice the longest time between two finished steps.
        """
        context, ops = self._context, self._context.outline.graph.ops
        limit = min(NO_STEP_S, context.outline.hang_after_s or NO_STEP_S)
        if context.state.phase != "running" or context.now < self._stepped + max(limit, 2 * self._longest):
            return ()
        at = [(key, rank.report) for key, rank in context.state.ranks.items() if rank.report and rank.report.done >= 0]
        found = [f"{role}/{n} in {ops[r.op].label} of step {r.step}" for (role, n), r in at if 0 <= r.op < len(ops)]
        if not found:
            return ()
        who = ", ".join(found[:3]) + (f", and {len(found) - 3} more" if len(found) > 3 else "")
        text = f"no rank has finished a step for more than {limit:g} s; progress is reported by {who}"
        return (f"{text}; a source that waits for records says so in its log",)

    def moved(self, key: RankKey) -> None:
        """A rank has got on."""
        now, slow = self._context.now, self._slow
        self._moved, self._suspect = now, None
        if slow is None or (slow.verdict.role, slow.verdict.rank) != key:
            return
        self._slow = None
        verdict, seen, took = slow.verdict, self._context.state.ranks[key].report, now - slow.since
        if seen is not None and _came_through(slow.report, seen) and took > self._base(verdict):
            # It was only slow: in other steps it may take as long.
            allowed = round(PATIENCE * took, 3)
            self._context.tell(t.SlowOperator(*key, verdict.step, verdict.operator, round(took, 3), allowed))

    def tick(self) -> None:
        """Time has passed."""
        context, state, now = self._context, self._context.state, self._context.now
        after, waits = context.outline.hang_after_s, state.busy or self._progress.held_back
        if after is None or state.phase != "running" or waits:
            self._suspect = None
            self._moved = self._stepped = now
            return
        if self._suspect is not None:
            verdict, asked = self._suspect
            if now >= asked + STACKS_S:
                self._judge(verdict, "")
            return
        if now < max(self._moved + after, self._looked + LOOK_S) or state.are(state.ranks, "done"):
            return
        self._looked = now
        verdict = self._culprit()
        record = state.ranks[verdict.role, verdict.rank]
        if verdict.computing and record.report is not None:
            # Others may have moved when it was in the operator already.
            self._slow = _Slow(verdict, min(self._moved, now - record.report.since_s), record.report)
        if now < self._moved + self._allowance(verdict):
            return
        home = state.agents[record.agent]
        if not context.outline.stacks or home.state != "up":
            self._judge(verdict, "")
            return
        self._suspect = (verdict, now)
        dump = m.Dump(context.outline.epoch, verdict.role, verdict.rank, record.launch.generation)
        context.want(e.ToAgent(record.agent, home.incarnation, dump))

    def stacks(self, stacks: m.Stacks) -> None:
        """The culprit's stacks have come."""
        if self._suspect is not None and (stacks.role, stacks.rank) == (self._suspect[0].role, self._suspect[0].rank):
            self._judge(self._suspect[0], stacks.text)

    def _culprit(self) -> hang.HangVerdict:
        ranks = self._context.state.ranks
        reports = {key: record.report for key, record in ranks.items() if record.report is not None}
        sizes = {role: record.launch.world_size for (role, _), record in ranks.items()}
        turns = {key: record.launch.turns for key, record in ranks.items()}
        return hang.culprit(
            self._context.outline.graph, reports, sizes, collective=tuple(self._context.groups), turns=turns
        )

    def _base(self, verdict: hang.HangVerdict) -> float:
        known = self._context.state.allowed.get((verdict.role, verdict.operator))
        return known.base_s if known is not None else self._context.outline.hang_after_s or 0.0

    def _allowance(self, verdict: hang.HangVerdict) -> float:
        """How long everything may stand still for this verdict's rank."""
        if not verdict.computing:
            return self._context.outline.hang_after_s or 0.0
        known = self._context.state.allowed.get((verdict.role, verdict.operator))
        return known.here_s if known is not None and known.step == verdict.step else self._base(verdict)

    def _judge(self, verdict: hang.HangVerdict, stacks: str) -> None:
        context, key = self._context, (verdict.role, verdict.rank)
        silent_s, allowed = context.now - self._moved, self._allowance(verdict)
        self._suspect, self._moved = None, context.now
        text, longer = verdict.text, 0.0
        if verdict.computing:
            longer = PATIENCE * allowed
            text += (
                f"; {allowed:g} s were allowed, {longer:g} s are the next time in this step: if it only takes that "
                "long, set hang.after_s above it"
            )
        base, chain = self._base(verdict), list(verdict.chain)
        context.tell(t.Hang(*key, verdict.step, verdict.operator, text, chain, longer, base, stacks))
        generation = context.state.ranks[key].launch.generation
        found = Failure(
            "hang", *key, context.node(key), verdict.operator, verdict.step, text, stacks, generation=generation
        )
        context.failed(found, silent_s)


def _came_through(was: m.RankReport, seen: m.RankReport) -> bool:
    """Whether a rank that has got on has left the call that it was in: it has not died in it, and not started again."""
    if seen.generation != was.generation:
        return False
    further = (seen.finished, seen.step, seen.op) > (was.finished, was.step, was.op)
    return further or seen.state in ("ready", "done")
