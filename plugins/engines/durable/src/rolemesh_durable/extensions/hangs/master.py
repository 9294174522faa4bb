"""The master's part of hang detection: it blames a rank when nothing has moved for `hang.after_s` seconds.

`hang.after_s` cannot be right for every operator. A rank that is blamed while it computes may only be slow. So the same
operator of a role may take twice as long each time that it is blamed in the same step: in the end it comes through, and
the ladder lasts for it. The operator keeps the time that it has proved to need, also if it comes through after its
verdict, before the agent kills its process. A rank that is stopped, or that waits, gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import OfRank
from rolemesh_durable.extensions.hangs.culprit import HangVerdict, culprit
from rolemesh_durable.extensions.hangs.messages import Dump, Stacks
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import ExtensionRecord, MasterExtension, MasterParts, Slice
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.state import JobState, RankRecord

__all__ = ["Allowance", "Allowed", "Hang", "HangWatch", "SlowOperator"]

STACKS_S = 5.0
"""Seconds that the verdict of a hang waits for the culprit's stacks."""
LOOK_S = 1.0
"""Seconds between two searches for the culprit, while the last one may take longer."""
NO_STEP_S = 60.0
"""Seconds without a finished step after which the master names the ranks that report progress."""
PATIENCE = 2.0
"""The factor by which an operator may take longer than it was allowed when it was judged, or than it has taken."""


class Allowance(msgspec.Struct, frozen=True):
    """The seconds that an operator may take: `here_s` in `step`, where it was judged last, and `base_s` in others."""

    step: int
    here_s: float
    base_s: float


class Allowed(Slice):
    """The allowances of operators that were judged."""

    key = "hangs"

    operators: dict[tuple[str, str], Allowance] = msgspec.field(default_factory=dict)
    """The allowances, by role and operator."""


class Hang(OfRank, ExtensionRecord, frozen=True, tag="hang"):
    """Nothing has moved for too long, because of this rank; it may take `next_s` the next time in this step."""

    step: int
    operator: str
    text: str
    chain: list[str]
    next_s: float
    base_s: float
    stacks: str

    def apply(self, state: JobState) -> None:
        """The operator may take longer, if it computed."""
        if self.next_s:
            allowance = Allowance(self.step, self.next_s, self.base_s)
            state.slice(Allowed).operators[self.role, self.operator] = allowance


class SlowOperator(OfRank, ExtensionRecord, frozen=True, tag="slow_operator"):
    """An operator that seemed to hang has come through: it may take as long from now on."""

    step: int
    operator: str
    seconds: float
    allowed_s: float

    def apply(self, state: JobState) -> None:
        """The operator may take as long in every step."""
        allowance = Allowance(self.step, self.allowed_s, self.allowed_s)
        state.slice(Allowed).operators[self.role, self.operator] = allowance


class _Slow(NamedTuple):
    """A computing rank that was judged to hang, and may only be slow.

    It holds the newest verdict, the rank's report at that time, and `since`: when the operator began, or when a rank
    last moved, whichever was earlier.
    """

    verdict: HangVerdict
    since: float
    report: m.RankReport


class HangWatch(MasterExtension):
    """Watches for movement, and blames a rank if there is none."""

    records = (Hang, SlowOperator)
    slice = Allowed

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._progress = parts.progress
        self._moved = self._stepped = self._longest = 0.0
        self._looked = float("-inf")
        self._suspect: tuple[HangVerdict, float] | None = None
        self._slow: _Slow | None = None

    def handlers(self) -> Mapping[type, Handler]:
        """Handle the stacks of the culprit."""
        return {Stacks: self._stacks}

    def begin(self) -> None:
        """Begin to watch with this master."""
        self._moved = self._stepped = self._context.now

    def rank_reported(self, rank: RankRecord, before: m.RankReport | None, seen: m.RankReport) -> None:
        """Note whether the rank has moved, and whether it has finished a step."""
        if before is None or _place(before) != _place(seen):
            self._rank_moved(seen)
        if seen.finished > rank.finished:
            now = self._context.now
            self._longest, self._stepped = max(self._longest, now - self._stepped), now

    def warnings(self) -> tuple[str, ...]:
        """Name the ranks that report progress while no rank finishes a step.

        Hang detection leaves such ranks alone. The warning comes after `NO_STEP_S`, or after `hang.after_s` if that is
        shorter, but not before twice the longest time between two finished steps.
        """
        context, ops = self._context, self._context.config.job.graph.ops
        limit = min(NO_STEP_S, context.config.hang_after_s or NO_STEP_S)
        if context.state.phase != "running" or context.now < self._stepped + max(limit, 2 * self._longest):
            return ()
        at = [(key, rank.report) for key, rank in context.state.ranks.items() if rank.report]
        at = [(key, r) for key, r in at if (r.done >= 0 or r.answered) and 0 <= r.op < len(ops)]
        found = [f"{ref} in {ops[r.op].label} of step {r.step}" for ref, r in at]
        if not found:
            return ()
        who = ", ".join(found[:3]) + (f", and {len(found) - 3} more" if len(found) > 3 else "")
        text = f"no rank has finished a step for more than {limit:g} s; progress is reported by {who}"
        remedy = "its log may say what it waits for" if len(found) == 1 else "their logs may say what they wait for"
        return (f"{text}; {remedy}",)

    def _rank_moved(self, seen: m.RankReport) -> None:
        now, slow = self._context.now, self._slow
        self._moved, self._suspect = now, None
        if slow is None or slow.verdict.ref != seen.ref:
            return
        self._slow = None
        verdict, took = slow.verdict, now - slow.since
        if _came_through(slow.report, seen) and took > self._base(verdict):
            # The operator was only slow. In other steps it may take this long too.
            allowed = round(PATIENCE * took, 3)
            self._context.tell(SlowOperator(*verdict.ref, verdict.step, verdict.operator, round(took, 3), allowed))

    def tick(self) -> None:
        """Look for a culprit if nothing has moved for too long."""
        context, state, now = self._context, self._context.state, self._context.now
        after, waits = context.config.hang_after_s, state.busy or self._progress.held_back
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
        record = state.ranks[verdict.ref]
        if verdict.computing and record.report is not None:
            # Others may have moved when it was in the operator already.
            self._slow = _Slow(verdict, min(self._moved, now - record.report.since_s), record.report)
        if now < self._moved + self._allowance(verdict):
            return
        home = state.agents[record.agent]
        if home.state != "up":
            self._judge(verdict, "")
            return
        self._suspect = (verdict, now)
        dump = m.ToPart.of(context.config.epoch, Dump(verdict.role, verdict.rank, record.launch.generation))
        context.want(e.ToAgent(record.agent, home.incarnation, dump))

    def _stacks(self, stacks: Stacks) -> None:
        if self._suspect is not None and stacks.ref == self._suspect[0].ref:
            self._judge(self._suspect[0], stacks.text)

    def _culprit(self) -> HangVerdict:
        ranks = self._context.state.ranks
        reports = {key: record.report for key, record in ranks.items() if record.report is not None}
        sizes = {role: record.launch.world_size for (role, _), record in ranks.items()}
        turns = {key: record.launch.turns for key, record in ranks.items()}
        graph, groups = self._context.config.job.graph, tuple(self._context.groups)
        return culprit(graph, reports, sizes, collective=groups, turns=turns)

    def _base(self, verdict: HangVerdict) -> float:
        known = self._context.state.slice(Allowed).operators.get((verdict.role, verdict.operator))
        return known.base_s if known is not None else self._context.config.hang_after_s or 0.0

    def _allowance(self, verdict: HangVerdict) -> float:
        """Return the seconds without movement that this verdict's rank is allowed."""
        if not verdict.computing:
            return self._context.config.hang_after_s or 0.0
        known = self._context.state.slice(Allowed).operators.get((verdict.role, verdict.operator))
        return known.here_s if known is not None and known.step == verdict.step else self._base(verdict)

    def _judge(self, verdict: HangVerdict, stacks: str) -> None:
        context, key = self._context, verdict.ref
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
        context.tell(Hang(*key, verdict.step, verdict.operator, text, chain, longer, base, stacks))
        generation = context.state.ranks[key].launch.generation
        found = Failure(
            "hang", *key, context.node(key), verdict.operator, verdict.step, text, stacks, generation=generation
        )
        context.failed(found, silent_s)


def _place(report: m.RankReport) -> tuple[object, ...]:
    at = (report.state, report.finished, report.step, report.op, report.phase, report.edge)
    return (*at, report.done, report.answered)


def _came_through(was: m.RankReport, seen: m.RankReport) -> bool:
    """Return True if the rank has left its call and made progress.

    It has not if it died in the call and started again.
    """
    if seen.generation != was.generation:
        return False
    further = (seen.finished, seen.step, seen.op) > (was.finished, was.step, was.op)
    return further or seen.state in ("ready", "done")
