"""Places for the ranks of resized roles: who has one keeps it, and nobody else moves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rolemesh.api.batch import Shard
from rolemesh.api.cluster import ClusterView
from rolemesh.api.plugin import NoOptions
from rolemesh.job.planning import plan_job
from rolemesh.placement import PlacementPlan, PlacementRequest, PlanBuilder, RoleRequest, Strategy
from rolemesh.placement.nodes import parse_nodes
from rolemesh_checkpoint.reshard import owned
from rolemesh_durable.master.placing import find_places
from rolemesh_durable.protocol.master import events as e
from rolemesh_pack import PackScheduler

pack = PackScheduler(NoOptions())
PACK = Strategy("pack", pack.place, pack.replace)
CLUSTER = parse_nodes("2x(cpu=2)")
REQUEST = PlacementRequest((RoleRequest("a", 1), RoleRequest("b", 2)))
PLAN = plan_job(REQUEST, CLUSTER, [("pack", pack.place)])
AGENTS = {"node0": "node-0", "node1": "node-1"}
HOMES = {a.ref: {n: name for name, n in AGENTS.items()}[PLAN.slot(a.slot).node] for a in PLAN.assignments}


def found(cluster: ClusterView = CLUSTER, agents: Mapping[str, str] = AGENTS, **sizes: int) -> e.PlacesFound:
    wanted = e.Places((), sizes, others_stay=True)
    return find_places(wanted, REQUEST, PLAN, cluster, (PACK,), HOMES, agents)


def test_an_agent_on_a_new_node_has_a_name_that_no_lost_one_had() -> None:
    more = found(parse_nodes("3x(cpu=2)"), {**AGENTS, "node2": ""}, b=4)
    assert [(place.agent, place.node) for place in more.places if place.node == "node-2"] == [("node3", "node-2")]


def test_new_ranks_get_free_places_and_the_others_keep_theirs() -> None:
    more = found(b=3)
    assert not more.why
    assert {m.ref: m.agent for m in more.moves}.items() >= {k: a for k, a in HOMES.items() if k[0] == "b"}.items()
    assert sorted(m.ref for m in more.moves) == [("b", 0), ("b", 1), ("b", 2)]
    assert more.plan.placed() == {("a", 0), ("b", 0), ("b", 1), ("b", 2)}


def test_fewer_ranks_give_their_slots_back() -> None:
    fewer = found(b=1)
    assert [(m.role, m.rank, m.agent) for m in fewer.moves] == [("b", 0, HOMES["b", 0])]
    assert len(fewer.plan.slots) == 2


def test_ranks_of_other_roles_leave_a_node_only_where_they_may() -> None:
    node = AGENTS[HOMES["a", 0]]
    stays, moves = (
        find_places(e.Places((node,), {"b": 1}, others_stay=stay), REQUEST, PLAN, CLUSTER, (PACK,), HOMES, AGENTS)
        for stay in (True, False)
    )
    assert stays.why == "there is no room unless a/0 move, which are not resized"
    assert (moves.why, {move.role for move in moves.moves}) == ("", {"a", "b"})
    assert all(AGENTS[move.agent] != node for move in moves.moves)


def test_ranks_without_room_are_reported() -> None:
    assert found(b=4).why.startswith("there is no room: b/3: ")


def test_the_remedy_of_a_strategy_is_printed_once() -> None:
    def refuse(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        builder = PlanBuilder(request, cluster, plan)
        builder.refuse(
            [("b", rank) for rank in builder.waiting("b")],
            {"cpu": 1.0},
            why="the rack is full",
            remedy="ask for rack 3",
        )
        return builder.build()

    strategy = Strategy("racks", refuse)
    wanted = e.Places((), {"b": 4}, others_stay=True)
    why = find_places(wanted, REQUEST, PLAN, CLUSTER, (strategy,), HOMES, AGENTS).why
    assert why == "there is no room: b/2: the rack is full; b/3: the rack is full → ask for rack 3"


WHOLE = [{"w": Shard(np.zeros(2), (4,), (at,)), "seed": at} for at in (0, 2)]


@pytest.mark.parametrize(
    ("states", "alone", "path"),
    [
        (WHOLE, False, ""),
        (WHOLE, True, "snapshot()['seed']"),
        ([{"w": state["w"]} for state in WHOLE], True, ""),
        ([{"step": 3}, {"step": 3}], False, ""),
        ([{"step": 3}, {"step": 3}], True, "snapshot()['step']"),
        ([{"step": 3}, {"step": 4}], False, "snapshot()['step']"),
        ([{"step": 3}, {"step": 3, "more": 1}], False, "snapshot()['more']"),
        ([{"step": 3}], True, "snapshot()['step']"),
    ],
)
def test_state_that_belongs_to_one_rank_is_named(states: list[dict[str, object]], alone: bool, path: str) -> None:
    assert owned(states, alone=alone) == path
