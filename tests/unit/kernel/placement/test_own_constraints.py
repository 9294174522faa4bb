"""Constraints that a strategy brings itself: skew over a domain, lower bounds, a domain for each rank."""

from __future__ import annotations

import msgspec
import pytest

from rolemesh import ClusterView, NodeView, PlacementPlan, PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import PlacementError
from rolemesh.job.planning import plan_job
from rolemesh.placement import Assignment, Constraint, Placed, PlanBuilder, Slot, Strategy
from rolemesh.placement.constraints import Ranks
from rolemesh.placement.nodes import parse_nodes
from rolemesh.placement.validation import ask, revive
from rolemesh_durable.protocol.master.replan import replan
from rolemesh_pack import PackScheduler

RACKS = parse_nodes("2x(cpu=4,label.rack=a),2x(cpu=4,label.rack=b)")
REQUEST = PlacementRequest((RoleRequest("work", 4),))


class Skew(Constraint, frozen=True, tag="test.Skew"):
    """Domains differ by at most `most` ranks of `role`."""

    role: str
    most: int
    domain: str

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        here, more = placed.here(self.domain, node), len(ranks.get(self.role, ()))
        if not more or here is None:
            return bool(more)
        return (
            here[self.role] + more - min(each[self.role] for each in placed.domains(self.domain).values()) > self.most
        )

    def told(self) -> str:
        return f"{self.by} lets {self.domain.removeprefix('label.')}s differ by {self.most} ranks of {self.role}"


class Least(Constraint, frozen=True, tag="test.Least"):
    """Each domain has at least `least` ranks of `role`."""

    role: str
    least: int
    domain: str

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        more, here = len(ranks.get(self.role, ())), placed.here(self.domain, node)
        counts = [each[self.role] + (each is here) * more for each in placed.domains(self.domain).values()]
        return bool(more) and sum(max(0, self.least - count) for count in counts) > placed.left[self.role] - more

    def told(self) -> str:
        return f"{self.by} wants {self.least} ranks of {self.role} in each {self.domain.removeprefix('label.')}"


class InTurn(Constraint, frozen=True, tag="test.InTurn"):
    """Rank n is in the n-th of `racks`."""

    role: str
    racks: tuple[str, ...]

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        return any(self.racks[rank % len(self.racks)] != node.labels.get("rack") for rank in ranks.get(self.role, ()))

    def told(self) -> str:
        return f"{self.by} wants the ranks of {self.role} in {', '.join(self.racks)} in turn"


SKEW = Skew("even", "work", 1, "label.rack")


def strategy(constraint: Constraint) -> Strategy:
    def place(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        builder = PlanBuilder(request, cluster, plan)
        builder.constrain(constraint)
        for rank in builder.waiting("work"):
            if not builder.put([("work", rank)], request.role("work").needs, "even: in turn"):
                builder.refuse([("work", rank)], request.role("work").needs)
        return builder.build()

    return Strategy("even", place)


def planned(constraint: Constraint, cluster: ClusterView = RACKS, request: PlacementRequest = REQUEST) -> PlacementPlan:
    return ask("even", strategy(constraint).place, request, cluster, PlacementPlan())


def racks(plan: PlacementPlan) -> list[str]:
    return [
        RACKS.node(plan.node_of(a.role, a.rank)).labels["rack"] for a in sorted(plan.assignments, key=lambda a: a.rank)
    ]


@pytest.mark.parametrize(
    ("constraint", "where"),
    [
        (SKEW, ["a", "b", "a", "b"]),
        (Least("even", "work", 1, "label.rack"), ["a", "a", "a", "b"]),
        (InTurn("even", "work", ("b", "a")), ["b", "a", "b", "a"]),
    ],
)
def test_ranks_are_put_where_it_lets_them(constraint: Constraint, where: list[str]) -> None:
    assert racks(planned(constraint)) == where


def test_a_refusal_by_a_constraint_is_reported_with_all_other_obstacles() -> None:
    plan = planned(SKEW, parse_nodes("2x(cpu=4,label.rack=a),1x(cpu=1,label.rack=b)"))
    assert plan.unplaced[0].reason == (
        "no node meets all of this: needs cpu 1, the most that is free on a node is 4 (node-1), but not whole, or not "
        "where the rest is free; even lets racks differ by 1 ranks of work"
    )


def test_another_strategy_is_held_to_it_whatever_the_order_in_which_it_places() -> None:
    slots = tuple(Slot(n, f"node-{at}", 1.0) for n, at in enumerate((0, 1, 2, 3)))
    seats = tuple(Assignment("work", n, n) for n in range(4))
    before = PlacementPlan(constraints=(SKEW,))
    good = msgspec.structs.replace(before, slots=slots, assignments=seats)
    assert ask("mine", lambda *_: good, REQUEST, RACKS, before).placed() == good.placed()
    bad = msgspec.structs.replace(good, slots=(*slots[:2], Slot(2, "node-0", 1.0), Slot(3, "node-1", 1.0)))
    with pytest.raises(PlacementError, match="put work/3 on node-1, but even lets racks differ by 1 ranks of work"):
        ask("mine", lambda *_: bad, REQUEST, RACKS, before)


def test_it_holds_after_a_node_is_lost_as_far_as_what_is_left_lets_it() -> None:
    pack = Strategy("pack", PackScheduler(PackScheduler.Options()).place)
    plan = msgspec.json.decode(msgspec.json.encode(planned(SKEW)), type=PlacementPlan)  # as a journal has it
    assert revive(plan).constraints == (SKEW,)
    (home,) = {plan.node_of("work", rank) for rank in (1, 3)}
    moved = replan(REQUEST, plan, (home,), RACKS, [pack])
    assert not moved.unplaced
    assert sorted(racks(moved)) == ["a", "a", "b", "b"]
    alone = replan(REQUEST, plan, ("node-2", "node-3"), RACKS, [pack])  # nothing but rack a is left
    assert not alone.unplaced
    assert racks(alone) == ["a"] * 4


class Faulty(Constraint, frozen=True, tag="test.Faulty"):
    """Fails, answers nonsense, or changes its mind."""

    how: str

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        if self.how == "raises":
            raise ZeroDivisionError("no racks")
        if self.how == "says nothing":
            return None  # type: ignore[return-value]
        ASKED.append(node.id)
        return len(ASKED) % 2 == 0

    def told(self) -> str:
        return "demands something"


ASKED: list[str] = []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raises", "failed: ZeroDivisionError: no racks"),
        ("says nothing", "failed: TypeError: forbids() returned None"),
        ("changes its mind", "answers differently when it is asked again"),
    ],
)
def test_a_wrong_constraint_is_named_for_any_strategy(how: str, why: str) -> None:
    def constrain(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        return msgspec.structs.replace(plan, constraints=(Faulty("mine", how),))

    with pytest.raises(PlacementError) as caught:
        plan_job(REQUEST, RACKS, [("mine", constrain), ("pack", PackScheduler(NoOptions()).place)])
    assert caught.value.what == f"mine's constraint {__name__}.Faulty {why}"
    assert caught.value.remedy == "report it to the author of mine"


def test_a_decoded_constraint_holds_when_its_class_is_imported() -> None:
    unknown = {"type": "nobody.Knows", "by": "x"}
    plan = PlacementPlan(constraints=(msgspec.to_builtins(SKEW),))
    assert PlanBuilder(REQUEST, RACKS, plan).build().constraints == (SKEW,)
    assert revive(PlacementPlan(constraints=(*plan.constraints, unknown))).constraints == (SKEW, unknown)


def test_a_strategy_gets_constraints_and_keeps_decoded_ones() -> None:
    seen = []

    def place(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        seen.append(plan.constraints)
        return plan

    assert ask("mine", place, REQUEST, RACKS, PlacementPlan(constraints=(msgspec.to_builtins(SKEW),)))
    assert seen == [(SKEW,)]
