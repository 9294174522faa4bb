"""Placement strategies that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import msgspec

from rolemesh import Assignment, ClusterView, PlacementPlan, PlacementRequest, Scheduler, Slot, Unplaced, hookimpl
from rolemesh.errors import PlacementError
from rolemesh.placement import Capacity, Constraint
from rolemesh_pack import PackScheduler

__all__ = ["BROKEN"]

replaced = msgspec.structs.replace


class Tampered(PackScheduler):
    """Places as `pack` does, and then spoils the plan."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> Any:
        return self.spoilt(plan, super().place(request, cluster, plan), request, cluster)

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> Any:
        moved = super().replace(plan, lost, cluster)
        return moved and self.spoilt_move(plan, moved, lost)

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return plan

    def spoilt_move(self, plan: PlacementPlan, moved: PlacementPlan, lost: tuple[str, ...]) -> Any:
        return moved

    @staticmethod
    def added(before: PlacementPlan, plan: PlacementPlan, **change: Any) -> PlacementPlan:
        """The plan with what was added to `before` changed."""
        kept = len(before.assignments)
        return replaced(
            plan, assignments=plan.assignments[:kept] + tuple(replaced(a, **change) for a in plan.assignments[kept:])
        )


def odd(request: PlacementRequest) -> bool:
    """Return whether a role has an odd world size. Only the kit's random jobs have one."""
    return any(role.world_size % 2 for role in request.roles)


def roomier(cluster: ClusterView) -> ClusterView:
    """With twice the cores and GPUs that there are."""
    return ClusterView(tuple(replaced(node, cpu=2 * node.cpu, gpu=2 * node.gpu) for node in cluster.nodes))


class Unmarked(Scheduler):
    """Forgets the mark."""

    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return plan


class Raises(Tampered):
    """Assumes that world sizes are even."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        if odd(request):
            raise ValueError("odd")
        return plan


class AnswersADict(Tampered):
    """Answers with something like a plan."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return msgspec.to_builtins(plan) if odd(request) else plan


class NeedsANode(Tampered):
    """Assumes that there is a node."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return plan if cluster.nodes[0].cpu >= 0 else None


class Curt(Tampered):
    """Refuses and does not say what to do."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        if odd(request):
            raise PlacementError("curt: no")
        return plan


class Hesitant(Tampered):
    """Gives up on ranks for which there is room."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        first = request.roles[0].role
        wait = tuple(Unplaced(first, rank, "later") for rank in range(request.roles[0].world_size))
        if any(a.role == first for a in before.assignments):
            return plan
        return super(Tampered, self).place(request, cluster, replaced(before, unplaced=before.unplaced + wait))


class Slow(Tampered):
    """Takes its time where there is much to do."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        if len(cluster.nodes) > 500:
            time.sleep(3.0)
        return plan


class Overcommits(PackScheduler):
    """Takes more than there is."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return super().place(request, roomier(cluster), plan)


class FirstDevice(Tampered):
    """Uses the first GPU for everything."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        if plan.constraints:
            return plan
        kept = len(before.slots)
        slots = (replaced(slot, gpus=((0, slot.gpu),)) if slot.gpu else slot for slot in plan.slots[kept:])
        return replaced(plan, slots=plan.slots[:kept] + tuple(slots))


class Stingy(PackScheduler):
    """Reserves no cores."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return super().place(PlacementRequest(tuple(replaced(r, cpu=0.0) for r in request.roles)), cluster, plan)


class Oversharing(Tampered):
    """Gives a rank more than its slot."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return self.added(before, plan, share=2.0)


class PlacesTwice(Tampered):
    """Puts a rank on its slot twice."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return replaced(plan, assignments=plan.assignments + plan.assignments[-1:])


class Miscounts(Tampered):
    """Counts ranks from 1."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        kept = len(before.assignments)
        shifted = (replaced(a, rank=a.rank + 1) for a in plan.assignments[kept:])
        return replaced(plan, assignments=plan.assignments[:kept] + tuple(shifted))


class Reserves(Tampered):
    """Keeps a slot in reserve."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        if not cluster.nodes:
            return plan
        return replaced(plan, slots=(*plan.slots, Slot(len(plan.slots), cluster.nodes[0].id, 0.0)))


class Silent(Tampered):
    """Does not say why a rank has no place."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return replaced(plan, unplaced=tuple(replaced(u, reason="") for u in plan.unplaced))


class Contradicts(Tampered):
    """Says that a rank that it has placed has no place."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        doubts = tuple(Unplaced(a.role, a.rank, "perhaps not") for a in plan.assignments[-1:])
        return replaced(plan, unplaced=plan.unplaced + doubts)


class Unreasoned(Tampered):
    """Gives no reasons."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return self.added(before, plan, rule="")


class WrongPeers(Tampered):
    """Makes ranks known to each other that there are not."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return self.added(before, plan, peers=(("nobody", 0),))


class StartsOver(PackScheduler):
    """Forgets what was decided before."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return super().place(request, cluster, PlacementPlan())


class Disobeys(PackScheduler):
    """Keeps constraints in the plan, and does not keep to them."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        made = super().place(request, cluster, replaced(plan, constraints=()))
        return replaced(made, constraints=plan.constraints)


class Lists(Tampered):
    """Writes lists where there are tuples."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        kept = len(before.slots)
        slots = tuple(replaced(slot, gpus=list(slot.gpus)) for slot in plan.slots[kept:])
        return replaced(plan, slots=plan.slots[:kept] + slots)


class Throws(Tampered):
    """Throws dice."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return self.added(before, plan, rule=f"throws: {os.urandom(4).hex()}")


class Remembers(Tampered):
    """Counts its calls."""

    calls = 0

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        self.calls += 1
        return self.added(before, plan, rule=f"remembers: call {self.calls}")


class Unsorted(Tampered):
    """Takes what comes first in a set."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        return self.added(before, plan, rule="unsorted: " + next(iter({f"word {n}" for n in range(64)})))


class Scribbles(Tampered):
    """Writes into the request."""

    def spoilt(
        self, before: PlacementPlan, plan: PlacementPlan, request: PlacementRequest, cluster: ClusterView
    ) -> Any:
        request.roles[0].custom["seen"] = 0.0
        return plan


class Hoards(PackScheduler):
    """Takes all that is left after a loss, for nobody."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        kept = plan.without(lost)
        left = Capacity(cluster, kept.slots)
        hoard = (Slot(len(kept.slots) + n, node.id, left.free(node.id)["cpu"]) for n, node in enumerate(cluster.nodes))
        return replaced(kept, slots=kept.slots + tuple(hoard))


class Reshuffles(Tampered):
    """Moves those who could stay."""

    def spoilt_move(self, plan: PlacementPlan, moved: PlacementPlan, lost: tuple[str, ...]) -> Any:
        last = len(moved.slots) - 1
        slots = tuple(replaced(slot, id=last - slot.id) for slot in reversed(moved.slots))
        return replaced(
            moved, slots=slots, assignments=tuple(replaced(a, slot=last - a.slot) for a in moved.assignments)
        )


class StaysPut(Tampered):
    """Answers to a loss with the plan as it was."""

    def spoilt_move(self, plan: PlacementPlan, moved: PlacementPlan, lost: tuple[str, ...]) -> Any:
        return plan


class Crowds(PackScheduler):
    """Takes more than there is after a loss."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        return super().replace(plan, lost, roomier(cluster))


class Lawless(PackScheduler):
    """Forgets constraints in a loss."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        moved = super().replace(replaced(plan, constraints=()), lost, cluster)
        return moved and replaced(moved, constraints=plan.constraints)


class Simultaneous(Tampered):
    """Forgets who takes turns."""

    def spoilt_move(self, plan: PlacementPlan, moved: PlacementPlan, lost: tuple[str, ...]) -> Any:
        kept = len(plan.without(lost).slots)
        return replaced(
            moved, slots=moved.slots[:kept] + tuple(replaced(slot, turns=False) for slot in moved.slots[kept:])
        )


class Divides(PackScheduler):
    """Gives each of those who took turns a slot of its own after a loss."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        slots: list[Slot] = []
        seats: list[Assignment] = []
        for a in plan.assignments:
            slot = plan.slots[a.slot]
            if slot.node not in lost or not any(other.slot == a.slot for other in plan.assignments if other is not a):
                continue
            slots.append(replaced(slot, id=len(slots), node=cluster.nodes[0].id, gpus=((len(slots), 1.0),)))
            seats.append(replaced(a, slot=len(slots) - 1))
        if not slots:
            return super().replace(plan, lost, cluster)
        return PlacementPlan(tuple(slots), tuple(seats), constraints=plan.constraints)


class NeedsASurvivor(PackScheduler):
    """Assumes that a node is left."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        return super().replace(plan, lost, cluster) if cluster.nodes[0].id not in lost else None


class ThrowsAfterALoss(Tampered):
    """Throws dice once a node is lost."""

    def spoilt_move(self, plan: PlacementPlan, moved: PlacementPlan, lost: tuple[str, ...]) -> Any:
        return self.added(plan.without(lost), moved, rule=f"throws: {os.urandom(4).hex()}")


class ScribblesAfterALoss(PackScheduler):
    """Writes into the cluster once a node is lost."""

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        for node in cluster.nodes:
            node.labels["survivor"] = "yes"
        return super().replace(plan, lost, cluster)


class Unsaid(Constraint, frozen=True, tag="broken.Unsaid"):
    """Demands nothing, and says nothing of it."""

    def forbids(self, ranks: Any, node: Any, placed: Any) -> bool:
        return False

    def told(self) -> str:
        return ""


class Named(Unsaid, frozen=True, tag="broken.Named"):
    """Says what it demands."""

    def told(self) -> str:
        return f"{self.by} demands nothing"


class Namesake(Named, frozen=True, tag="broken.Named"):
    """Has the tag of another."""


class Mute(PackScheduler):
    """Its constraint says nothing."""

    demands: Constraint = Unsaid("mute")

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        made = super().place(request, cluster, plan)
        return replaced(made, constraints=(*made.constraints, self.demands))


class Confusable(Mute):
    """Its constraint would be taken for another where the plan is read."""

    demands = Namesake("confusable")


class Rotating(Tampered):
    """Begins at another node each day, so a job that goes on tomorrow is elsewhere."""

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> Any:
        first = datetime.date.today().day % max(1, len(cluster.nodes))
        return super().place(request, ClusterView((*cluster.nodes[first:], *cluster.nodes[:first])), plan)


BROKEN: dict[type[Scheduler], set[str]] = {
    Unmarked: {"test_it_has_the_hook_that_places"},
    Raises: {"test_it_answers_with_a_plan_or_refuses"},
    AnswersADict: {"test_it_answers_with_a_plan_or_refuses"},
    NeedsANode: {"test_it_answers_on_every_kind_of_cluster"},
    Curt: {"test_a_refusal_says_what_to_do"},
    Hesitant: {"test_all_ranks_have_a_place_if_there_is_room"},
    Overcommits: {"test_plans_stay_within_capacity"},
    FirstDevice: {"test_plans_stay_within_capacity"},
    Stingy: {"test_ranks_have_the_resources_that_they_request"},
    Oversharing: {"test_ranks_have_the_resources_that_they_request"},
    PlacesTwice: {"test_no_rank_has_two_places"},
    Miscounts: {"test_no_rank_has_two_places", "test_ranks_without_a_place_have_a_reason"},
    Reserves: {"test_every_slot_has_a_rank"},
    Silent: {"test_ranks_without_a_place_have_a_reason"},
    Contradicts: {"test_ranks_without_a_place_have_a_reason"},
    Unreasoned: {"test_places_have_a_reason"},
    WrongPeers: {"test_peers_are_ranks_of_the_job"},
    StartsOver: {"test_earlier_decisions_stay"},
    Disobeys: {"test_constraints_hold"},
    Mute: {"test_its_own_constraints_can_be_described_and_encoded"},
    Confusable: {"test_its_own_constraints_can_be_described_and_encoded", "test_plans_survive_json"},
    Lists: {"test_plans_survive_json"},
    Throws: {
        "test_the_same_question_has_the_same_answer",
        "test_it_keeps_nothing_from_call_to_call",
        "test_another_process_has_the_same_answer",
    },
    Rotating: {"test_the_same_question_has_the_same_answer"},
    Remembers: {"test_it_keeps_nothing_from_call_to_call"},
    Unsorted: {"test_another_process_has_the_same_answer"},
    Scribbles: {"test_its_arguments_stay_as_they_are"},
    Hoards: {"test_a_job_goes_on_after_the_loss_of_a_node", "test_ranks_that_shared_a_slot_share_one_again"},
    Reshuffles: {"test_survivors_stay_where_they_are"},
    StaysPut: {"test_moved_ranks_are_on_living_nodes", "test_ranks_that_shared_a_slot_share_one_again"},
    Crowds: {"test_moved_ranks_are_within_capacity"},
    Lawless: {"test_constraints_hold_after_a_loss"},
    Simultaneous: {"test_ranks_that_shared_a_slot_share_one_again"},
    Divides: {"test_ranks_that_shared_a_slot_share_one_again"},
    NeedsASurvivor: {"test_the_loss_of_all_nodes_is_survived"},
    ThrowsAfterALoss: {"test_a_loss_has_the_same_answer_each_time", "test_another_process_has_the_same_answer"},
    ScribblesAfterALoss: {"test_a_loss_has_the_same_answer_each_time"},
    Slow: {"test_a_thousand_nodes_are_planned_in_time"},
}
