"""Failover levels that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel

from rolemesh import Budget, FailoverLevel, Failure, GiveUp, JobView, RecoveryPlan, Verdict, hookimpl
from rolemesh.api.failures import Scope
from rolemesh.errors import RolemeshError

__all__ = ["BROKEN"]

replaced = msgspec.structs.replace


class Tampered(FailoverLevel):
    """Restarts what the failure takes, and then spoils the plan."""

    scope: ClassVar[Scope] = "node"

    @hookimpl
    def recover(self, failure: Failure, view: JobView) -> Any:
        lost = view.lost_with(failure)
        plan = RecoveryPlan(lost, reason="what the failure takes starts again")
        return self.spoilt(plan, failure, view) if lost else self.unknown(failure, view)

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return plan

    def unknown(self, failure: Failure, view: JobView) -> Any:
        return None


class Unmarked(FailoverLevel):
    """Forgets the mark."""

    def recover(self, failure: Failure, view: JobView) -> RecoveryPlan | None:
        return None


class Unlimited(Tampered):
    """Has options without a budget."""

    class Options(BaseModel, extra="forbid"):  # type: ignore[assignment]
        """None."""


class Insists(Tampered):
    """Has a budget of its own."""

    def __init__(self, options: Any) -> None:
        super().__init__(Budget(max_attempts=1000))


class Elsewhere(Tampered):
    """Has a scope of its own."""

    scope = "rack"  # type: ignore[assignment]


class NeedsARank(Tampered):
    """Assumes that the job has who failed."""

    def unknown(self, failure: Failure, view: JobView) -> Any:
        return RecoveryPlan((view.lost_with(failure)[0],), reason="one")


class Judges(Tampered):
    """Answers with a verdict."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return Verdict("software", "a process ended")


class GivesUp(Tampered):
    """Raises what is made for people where it has no more to propose."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        if len(view.attempts) > 2:
            raise RolemeshError("tried often enough")
        return plan


class KnowsEverybody(Tampered):
    """Restarts somebody else where the job does not have who failed."""

    def unknown(self, failure: Failure, view: JobView) -> Any:
        first = view.ranks[0]
        if len(view.group(first.role, first.rank)) == len(view.ranks):
            return None
        return RecoveryPlan(view.group(first.role, first.rank), reason="somebody")


class JudgesRashly(Tampered):
    """Cannot judge what has no message."""

    @hookimpl
    def diagnose(self, failure: Failure, view: JobView) -> Verdict:
        return Verdict("user" if failure.message.splitlines()[0] == "boom" else "unknown", "the message says so")


class Slow(Tampered):
    """Looks at every pair of ranks."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        if len(view.ranks) > 1000:
            time.sleep(3.0)
        return plan


class Idle(Tampered):
    """Restarts nobody."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, restart=())


class RestartsStrangers(Tampered):
    """Restarts a rank more than there are."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, restart=(*plan.restart, ("ghost", 0)))


class Stammers(Tampered):
    """Restarts a rank twice."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, restart=plan.restart * 2)


class OneOnly(Tampered):
    """Restarts one rank, or its group, of a whole node."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, restart=view.group(*plan.restart[0]))


class Splits(Tampered):
    """Restarts ranks without their groups."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        if failure.rank >= 0:
            return replaced(plan, restart=(failure.ref,))
        return replaced(plan, restart=tuple(r.ref for r in view.ranks if r.node == failure.node))


class Misspells(Tampered):
    """Avoids a node that there is not."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, avoid=("nowhere",))


def leaving(plan: RecoveryPlan, view: JobView, *, all_of_it: bool) -> RecoveryPlan:
    """The plan, away from the node of its first rank; with everybody there, or with those only who restart anyway."""
    node = next(r.node for r in view.ranks if r.ref == plan.restart[0])
    there = [mate for r in view.ranks if r.node == node for mate in view.group(r.role, r.rank)]
    return replaced(plan, avoid=(node,), restart=tuple(dict.fromkeys([*plan.restart, *(there if all_of_it else ())])))


class LeavesOthers(Tampered):
    """Leaves a node and forgets who else is there."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return leaving(plan, view, all_of_it=False)


class BansOthers(Tampered):
    """Bans a node and forgets who else is there."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        gone = leaving(plan, view, all_of_it=False)
        return replaced(gone, avoid=(), ban=dict.fromkeys(gone.avoid, 60.0))


class MovesProcesses(Tampered):
    """Says that it leaves ranks where they are, and moves them."""

    scope = "process"

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return leaving(plan, view, all_of_it=True)


class RestartsAll(Tampered):
    """Says that it moves nodes, and restarts the job."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, source="disk", restart=tuple(r.ref for r in view.ranks))


class HalfFromDisk(Tampered):
    """Restarts a part of the job from disk."""

    scope = "job"

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, source="disk")


class WaitsForever(Tampered):
    """Waits until there is room."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, wait_s=float("inf"))


class Halves(Tampered):
    """Halves the role that has failed, however many ranks it may have."""

    scope = "job"

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        sizes = {role: sum(r.role == role for r in view.ranks) // 2 for role, _ in plan.restart}
        return replaced(plan, restart=tuple(r.ref for r in view.ranks), source="disk", resize=sizes)


class Spends(Tampered):
    """Gives the role that has failed a thousand cores more, whatever it may have."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, resources={role: {"cpu": 1000.0} for role, _ in plan.restart})


class Silent(Tampered):
    """Gives no reason."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, reason="")


class Curt(Tampered):
    """Ends the job and gives no reason."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return GiveUp(" ") if len(view.failures) > 2 else plan


class Throws(Tampered):
    """Throws dice."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, wait_s=1.0 + os.urandom(1)[0])


class Remembers(Tampered):
    """Waits longer from time to time."""

    times = 0

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        self.times += 1
        return replaced(plan, wait_s=float(self.times))


class Unsorted(Tampered):
    """Takes what comes first in a set."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, reason=next(iter({f"reason {n}" for n in range(64)})))


class Nightly(Tampered):
    """Waits for the morning at night. The master's clock is another one after its restart."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        return replaced(plan, wait_s=600.0 if time.localtime().tm_hour % 2 else 0.0)


class Counts(Tampered):
    """Has a budget of its own, for all that its process recovers. A restarted master begins to count again."""

    spent: ClassVar[dict[Any, int]] = {}

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        self.spent[failure.ref] = self.spent.get(failure.ref, 0) + 1
        return plan if self.spent[failure.ref] <= 1 else None


class Scribbles(Tampered):
    """Doubles what the ranks have, in the view that the next level gets."""

    def spoilt(self, plan: RecoveryPlan, failure: Failure, view: JobView) -> Any:
        for amounts in view.resources.values():
            amounts["memory_gb"] *= 2  # type: ignore[index]
        return plan


BROKEN: dict[type[FailoverLevel], set[str]] = {
    Unmarked: {"test_it_has_the_hook_that_recovers"},
    Unlimited: {"test_its_options_are_a_budget", "test_its_budget_is_the_one_of_the_job_file"},
    Insists: {"test_its_budget_is_the_one_of_the_job_file"},
    Elsewhere: {"test_its_scope_is_one_of_the_ladders", "test_its_budget_is_the_one_of_the_job_file"},
    NeedsARank: {"test_it_answers_every_kind_of_failure", "test_it_answers_in_every_situation"},
    Judges: {
        "test_it_answers_every_kind_of_failure",
        "test_it_answers_in_every_situation",
        "test_it_answers_in_time_for_ten_thousand_ranks",
    },
    GivesUp: {"test_it_answers_in_every_situation"},
    KnowsEverybody: {"test_unknown_failures_are_passed_on"},
    JudgesRashly: {"test_it_judges_every_kind_of_failure"},
    Idle: {"test_it_restarts_ranks_of_the_job", "test_it_restarts_all_that_the_failure_takes"},
    RestartsStrangers: {"test_it_restarts_ranks_of_the_job"},
    Stammers: {"test_it_restarts_ranks_of_the_job"},
    OneOnly: {"test_it_restarts_all_that_the_failure_takes"},
    Splits: {"test_it_restarts_whole_groups"},
    Misspells: {"test_it_avoids_nodes_that_the_job_knows"},
    LeavesOthers: {"test_ranks_on_an_avoided_node_restart"},
    BansOthers: {"test_ranks_on_an_avoided_node_restart"},
    MovesProcesses: {"test_its_plans_are_within_its_scope"},
    RestartsAll: {"test_its_plans_are_within_its_scope"},
    HalfFromDisk: {"test_after_a_restart_from_disk_every_rank_restarts"},
    Halves: {"test_it_resizes_within_limits"},
    Spends: {"test_it_gives_no_more_than_a_role_may_have"},
    WaitsForever: {"test_it_waits_for_a_finite_time"},
    Silent: {"test_plans_have_a_reason"},
    Curt: {"test_the_end_of_a_job_has_a_reason"},
    Throws: {
        "test_the_same_failure_has_the_same_answer",
        "test_it_keeps_nothing_from_failure_to_failure",
        "test_another_process_has_the_same_answer",
    },
    Remembers: {"test_it_keeps_nothing_from_failure_to_failure"},
    Unsorted: {"test_another_process_has_the_same_answer"},
    Nightly: {"test_the_same_failure_has_the_same_answer"},
    Counts: {"test_another_process_has_the_same_answer"},
    Scribbles: {"test_its_arguments_stay_as_they_are"},
    Slow: {"test_it_answers_in_time_for_ten_thousand_ranks"},
}
