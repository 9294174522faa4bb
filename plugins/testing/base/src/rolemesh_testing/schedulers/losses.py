"""Tests of a placement strategy when nodes are lost, with or without the hook `replace`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.placement import Assignment, PlacementPlan, PlacementRequest, RoleRequest, Slot
from rolemesh.placement.validation import forbidden, misplaced, overcommitted, revive, undone
from rolemesh_durable.api.testing import replan, stranded_in
from rolemesh_testing.schedulers.planner import Planner, Refused
from rolemesh_testing.schedulers.situations import PACK, PlacementConformance, Situation, planned

__all__ = ["LossConformance"]


class Loss(msgspec.Struct, frozen=True):
    """The input of `replace`: `stranded` is the plan with survivors first, `lost` the nodes, `alive` the remaining
    cluster.
    """

    request: PlacementRequest
    stranded: PlacementPlan
    survivors: PlacementPlan
    lost: tuple[str, ...]
    alive: ClusterView


class LossConformance(PlacementConformance):
    """The part of `SchedulerConformance` that removes nodes."""

    def test_a_job_goes_on_after_the_loss_of_a_node(
        self, planner: Planner, asked: PlacementRequest, roomy: ClusterView
    ) -> None:
        """The cluster has free resources. For each lost node in turn, its ranks have a place again."""
        plan = planned(planner, asked, roomy)
        if plan is None or plan.unplaced:
            pytest.skip("it has no plan, which is another test's finding")
        for node in roomy.nodes:
            alive = roomy.without((node.id,))
            after = replan(asked, plan, (node.id,), alive, [planner.strategy, PACK])
            left = [f"{u.ref} ({u.reason})" for u in after.unplaced]
            assert not left, f"after the loss of {node.id} there is room for all, but no place for {left[0]}"

    def test_survivors_stay_where_they_are(self, planner: Planner) -> None:
        """A moved rank has to restart. Ranks on living nodes would lose their work."""
        self._find_moved(planner, lambda loss, moved: undone(revive(loss.survivors), revive(moved.without(loss.lost))))

    def test_moved_ranks_are_on_living_nodes(self, planner: Planner) -> None:
        """The strategy returns None if it leaves all ranks to `place`. The engine executes any plan that it returns."""

        def problems(loss: Loss, moved: PlacementPlan) -> Iterable[str]:
            for a in moved.assignments:
                if moved.slots[a.slot].node in loss.lost:
                    yield f"left {a.ref} on {moved.slots[a.slot].node}, which is lost; return None for that"

        self._find_moved(planner, problems)

    def test_moved_ranks_are_within_capacity(self, planner: Planner) -> None:
        """Moved ranks fit beside the ranks that stay."""
        self._find_moved(planner, lambda loss, moved: overcommitted(loss.alive, moved.without(loss.lost)))

    def test_constraints_hold_after_a_loss(self, planner: Planner) -> None:
        """The constraints of all strategies are in the plan."""

        def problems(loss: Loss, moved: PlacementPlan) -> Iterable[str]:
            settled = moved.without(loss.lost)
            if not any(undone(revive(loss.survivors), revive(settled))):
                yield from forbidden(loss.request, loss.alive, loss.survivors, settled)

        self._find_moved(planner, problems)

    def test_ranks_that_shared_a_slot_share_one_again(self, planner: Planner, roomy: ClusterView) -> None:
        """Ranks that take turns on devices have memory for one of them only. The plan keeps shares and peers, too."""
        _needs_replace(planner)
        first, second = self.roles[0], self.roles[-1]
        request = PlacementRequest(tuple(RoleRequest(role, 1, 2.0, 1.0) for role in dict.fromkeys((first, second))))
        node = roomy.nodes[0].id
        seats = tuple(
            Assignment(
                role.role, 0, 0, 0.5, "kit: turns", tuple(RankRef(r.role, 0) for r in request.roles if r is not role)
            )
            for role in request.roles
        )
        plan = PlacementPlan((Slot(0, node, 2.0, 1.0, ((0, 1.0),), turns=True),), seats)
        moved = self._moved(planner, Loss(request, plan, PlacementPlan(), (node,), roomy.without((node,))))
        if moved is None:
            pytest.skip("it leaves this to place()")
        settled = moved.without((node,))
        on = {a.slot for a in settled.assignments}
        told = f"{first}/0 and {second}/0, which took turns on a slot,"
        assert len(settled.assignments) == len(seats), f"{told} are not both placed; return None for that"
        assert len(on) == 1, f"{told} have slots of their own"
        assert settled.slots[on.pop()].turns, f"{told} share one now without turns; keep Slot.turns"
        kept = {(a.role, a.rank, a.share, a.peers) for a in settled.assignments}
        assert kept == {(a.role, a.rank, a.share, a.peers) for a in seats}, f"{told} have lost their shares or peers"

    def test_the_loss_of_all_nodes_is_survived(self, planner: Planner) -> None:
        """No place is left. The master waits for nodes, and asks again."""
        _needs_replace(planner)

        def check(at: Situation) -> None:
            plan = planned(planner, at.request, at.cluster)
            if plan is None or not plan.slots:
                return
            everything = tuple(sorted(node.id for node in at.cluster.nodes))
            try:
                moved = planner.replace(plan, everything, ClusterView(()))
            except Refused:
                return
            except PluginError as error:
                raise AssertionError(f"all nodes are lost: {error.what}") from error
            left = moved.without(everything).assignments if isinstance(moved, PlacementPlan) else ()
            assert not left, "all nodes are lost, and it still has places"

        self.for_all(check)

    def test_a_loss_has_the_same_answer_each_time(self, planner: Planner) -> None:
        """The master may ask twice, and so may its successor."""
        _needs_replace(planner)
        other = planner.renewed()

        def check(at: Situation) -> None:
            loss = _loss(planner, at)
            if loss is not None:
                given = msgspec.json.encode(loss)
                first = self._answer(planner, loss)
                assert self._answer(other, loss) == first, "replace() answers differently when asked again"
                assert msgspec.json.encode(loss) == given, "replace() writes into the plan or the cluster"

        self.for_all(check)

    def _answer(self, planner: Planner, loss: Loss) -> PlacementPlan | str | None:
        try:
            return planner.replace(loss.stranded, loss.lost, loss.alive)
        except (RolemeshError, Refused) as error:
            return str(error)

    def _moved(self, planner: Planner, loss: Loss) -> PlacementPlan | None:
        """Return the answer; None if the strategy leaves ranks to `place`, or returns no plan."""
        answer = self._answer(planner, loss)
        if not isinstance(answer, PlacementPlan) or any(misplaced(loss.request, answer)):
            return None
        return answer

    def _find_moved(self, planner: Planner, problems: Callable[[Loss, PlacementPlan], Iterable[str]]) -> None:
        _needs_replace(planner)

        def check(at: Situation) -> None:
            loss = _loss(planner, at)
            moved = self._moved(planner, loss) if loss is not None else None
            if loss is None or moved is None:
                return
            found = next(iter(problems(loss, moved)), None)
            assert found is None, f"{', '.join(loss.lost)} lost: replace() {found}"

        self.for_all(check)


def _loss(planner: Planner, at: Situation) -> Loss | None:
    """Draw the loss of one or two nodes of a job's plan; None if the strategy has no plan, or no rank is on the nodes.

    In half of the cases as many nodes join, with the sizes of the lost ones and labels of another node.
    """
    plan = planned(planner, at.request, at.cluster, PlacementPlan(constraints=at.before.constraints))
    used = sorted({slot.node for slot in plan.slots}) if plan is not None else []
    if plan is None or not used:
        return None
    one, other = at.dice
    lost = tuple(sorted({used[number % len(used)] for number in ((one, other) if one < 6 else (other,))}))
    alive = at.cluster.without(lost)
    if other % 2:
        nodes = at.cluster.nodes
        joined = (
            msgspec.structs.replace(nodes[number], id=f"joined-{number}", labels=dict(nodes[number - 1].labels))
            for number in range(len(nodes))
            if nodes[number].id in lost
        )
        alive = ClusterView((*alive.nodes, *joined))
    survivors = plan.without(lost)
    stranded = stranded_in(plan, lost, survivors)
    return Loss(at.request, stranded, survivors, lost, alive) if stranded is not None else None


def _needs_replace(planner: Planner) -> None:
    if not planner.replaces:
        pytest.skip("it has no hook replace(), so place() is asked")
