"""The way from failures to a plan. New failures join the plan, and a plan that cannot be carried out escalates.

failure ─▶ diagnosis ─▶ ladder ─▶ plan ─▶ carried out (`carrying_out`) ─▶ recovered ─▶ regained
              ▲                              │ a failure meanwhile, or a phase that cannot go on
              └──────────────────────────────┴── merged into a new plan
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import msgspec

from rolemesh.api.failures import Failure, RecoveryPlan, describe
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.carrying_out import CarryingOut
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.ladder import Proposal, Refuse, diagnosed, escalated, propose
from rolemesh_durable.protocol.master.primary import is_echo, primary
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.sizes import refusal
from rolemesh_durable.protocol.master.state import Recovery

__all__ = ["Coordinator"]

SETTLE_S = 0.2
"""Seconds that the ranks of a failed job continue: they finish the steps that they can, and send their metrics."""
LINES_S = 0.5
"""Maximum seconds that such a job waits for these lines. Those of a killed rank never come."""
ECHO_S = 0.2
"""Seconds that a broken connection waits for the death behind it, which the master often sees a moment later."""


class Coordinator:
    """Handles one recovery at a time."""

    def __init__(self, context: MasterContext, progress: Progress, checkpoints: Checkpoints) -> None:
        self._context = context
        self._carrying_out = CarryingOut(context, progress, checkpoints)
        self._progress = progress
        self._open_since: float | None = None
        self._given_up: tuple[str, float] | None = None
        """The reason for which the job fails, and when the master knew it."""

    @property
    def waiting(self) -> str:
        """The reason for which a recovery waits before anything starts, in words; "" if it does not wait."""
        at, left = self._context.state.recovery, 0.0
        if at is None or at.phase != "halting" or (left := at.not_before - self._context.now) <= 0:
            return ""
        who = ", ".join(map(str, at.restart))
        return f"recovery {at.number} of {who} waits {left:.0f} of {at.plan.delay_s:.3g} s before attempt {at.attempt}"

    def suspected(self, failure: Failure) -> None:
        """Take a report of a straggler: a rank that works, but badly.

        It fails only if a diagnoser returns a verdict.
        """
        context = self._context
        verdict = diagnosed(failure, context.view(), context.diagnosers)
        if verdict is not None and not context.state.busy and context.ladder:
            context.failed(failure)

    def answered(self, event: e.PlacesFound | e.OriginFound) -> None:
        """Take the shell's answer: an origin, or places."""
        if (recovery := self._context.state.recovery) is not None:
            self._escalate(self._carrying_out.answered(recovery, event), no_place=True)

    def step(self) -> None:
        """Continue the recovery as far as possible."""
        context, state = self._context, self._context.state
        if self._given_up is not None:
            self._fail(*self._given_up)
            return
        if not state.open:
            self._open_since = None
        else:
            self._open_since = context.now if self._open_since is None else self._open_since
            if not all(map(is_echo, state.open)) or context.now >= self._open_since + ECHO_S:
                self._plan(list(state.open))
        self._regained()
        while self._given_up is None and (recovery := state.recovery) is not None:
            went_on, why = self._carrying_out.step(recovery)
            if why:
                self._escalate(why)
            elif not went_on:
                break

    def restart(self, word: str, ranks: Sequence[RankRef], reason: str, avoid: Sequence[str] = ()) -> None:
        """Start these ranks again outside the nodes `avoid`, without a failure. No level is charged for it.

        `word` takes the place of a level's name; see `MasterExtension.words`.
        """
        plan = RecoveryPlan(tuple(ranks), avoid=tuple(avoid), reason=reason, level=word)
        self._begin(plan, [], Proposal(plan, (reason,), (), attempt=0))

    def brings_back(self, keys: Sequence[RankRef], lost: str = "") -> bool:
        """Return True if the present recovery will start all of these ranks again, and has not begun to.

        If their node `lost` is gone, the plan must have known that it goes. Any other plan has counted on its room.
        """
        at = self._context.state.recovery
        if at is None or not keys:
            return not keys
        return at.phase != "launching" and set(keys) <= set(at.restart) and (not lost or lost in at.plan.avoid)

    def _plan(self, found: list[Failure], floors: Sequence[int] = (), why: str = "") -> None:
        """Make a new plan, which includes the unfinished part of the present one. `why` that one failed, if it did."""
        context, before = self._context, self._context.state.recovery
        refuse: Refuse = partial(refusal, config=context.config, state=context.state)
        proposal = propose(found, context.view(), context.ladder, context.diagnosers, floors, refuse)
        if proposal.plan is None:
            trail = [*proposal.trail, *([f"  {before.plan.level}: {why}"] if before is not None and why else [])]
            what = describe(primary(found))
            if context.ladder or any(verdict.fatal for verdict in proposal.verdicts):
                context.tell(t.LadderExhausted(trail, proposal.ended_by))
                what += "\n" + "\n".join(f"  {line}" for line in trail[1:])
            self._fail(what, context.now)
            return
        plan = proposal.plan
        if before is not None:
            plan = self._merged(plan, before)
            if not floors:
                plan = _with_limits(plan, before, context.now)
                found = [*before.failures, *found]
                proposal = msgspec.structs.replace(proposal, tried=(*before.tried, *proposal.tried))
        self._begin(plan, found, proposal)

    def _fail(self, what: str, since: float) -> None:
        """End the job once the lines of the steps that all ranks have finished are written."""
        context, state, progress = self._context, self._context.state, self._progress
        finished = min((rank.finished for rank in state.ranks.values()), default=-1)
        written = progress.published >= progress.last_line(finished) or progress.held
        goes_on = state.phase == "running" and any(agent.state == "up" for agent in state.agents.values())
        if not goes_on or context.now >= since + (SETTLE_S if written else LINES_S):
            self._given_up = None
            context.stop("failed", what, context.config.stop_grace_s if context.config.job.own_signals else 0.0)
        else:
            self._given_up = what, since

    def _merged(self, plan: RecoveryPlan, before: Recovery) -> RecoveryPlan:
        """Return a plan that includes what `before` has not restored yet. `before` is given up."""
        context, ranks = self._context, self._context.state.ranks
        left = [key for key in before.restart if ranks[key].state not in ("ready", "running", "done")]
        everything = "disk" in (plan.source, before.plan.source) and bool(left)
        source: Literal["memory", "disk"] = "disk" if plan.source == "disk" or everything else "memory"
        wanted = {mate for group in context.groups_of((*plan.restart, *left)) for mate in group}
        return msgspec.structs.replace(
            plan, restart=context.ordered(ranks if source == "disk" else wanted), source=source
        )

    def _begin(self, plan: RecoveryPlan, found: list[Failure], proposal: Proposal) -> None:
        state = self._context.state
        were = tuple(
            (*key, max(state.ranks[key].finished, state.reached.get(key, -1)))
            for key in plan.restart
        )  # fmt: skip
        causes = list(dict.fromkeys(str(failure.cause) for failure in found))
        self._context.tell(
            t.RecoveryPlanned(
                state.recoveries + 1, proposal.attempt, plan, [describe(failure) for failure in found], were,
                causes or [plan.level], list(proposal.trail), self._context.now, proposal.tried,
                proposal.verdicts,
            )
        )  # fmt: skip

    def _escalate(self, why: str, no_place: bool = False) -> None:
        """If there is a reason `why` the plan failed, make a new one for the same failures; see `escalated`."""
        context, recovery = self._context, self._context.state.recovery
        if not why or recovery is None:
            return
        context.tell(t.RecoveryFailed(recovery.number, recovery.plan.level, why, context.now))
        sentence = context.hooks.words.get(recovery.plan.level)
        what = f"{sentence}: {why}" if sentence else "it was being brought back when the master died"
        found = recovery.failures or [Failure("exit", *key, message=what) for key in recovery.restart[:1]]
        tried = recovery.tried[-len(recovery.failures) :]  # all where there are none: of who stands for them
        floors = escalated(found, tried, context.view(), context.ladder, no_place)
        self._plan([*found, *context.state.open], floors, why)

    def _regained(self) -> None:
        """Record the recoveries whose ranks have reached their former steps: they cost no progress any more."""
        state = self._context.state
        if state.recovery is not None or not state.regaining or state.phase not in ("starting", "running"):
            return
        if all(state.ranks[key].finished >= step for key, step in state.reached.items()):
            for number in list(state.regaining):
                self._context.tell(t.Regained(number, self._context.now))


def _with_limits(plan: RecoveryPlan, before: Recovery, now: float) -> RecoveryPlan:
    """Return a plan that keeps the avoided nodes and waits of `before`, and its unfinished changes to roles."""
    return msgspec.structs.replace(
        plan,
        avoid=tuple(dict.fromkeys([*before.plan.avoid, *plan.avoid])),
        wait_s=max(before.plan.wait_s, plan.wait_s),
        delay_s=max(before.not_before - now, plan.delay_s),
        resize=before.plan.resize | plan.resize if plan.source == "disk" else {},
        resources=before.plan.resources | plan.resources,
    )
