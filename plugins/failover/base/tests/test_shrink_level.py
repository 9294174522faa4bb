"""Roles do without the ranks of lost nodes, as far as they may."""

from __future__ import annotations

import msgspec

from rolemesh import Budget, Failure, JobView, NodeState, Pass, RankView, RecoveryPlan, Verdict
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_failover_shrink import ShrinkLevel

RECORD = PluginRecord("failover", "shrink", "rolemesh-failover", "0.1.0", "rolemesh_failover_shrink:ShrinkLevel")
LOST = Failure("node_lost", node="n1")
VIEW = JobView(
    "job",
    1,
    16,
    (
        *(RankView("rollout", rank, f"n{rank % 2}", "running", 17, 0) for rank in range(4)),
        RankView("reward", 0, "n1", "running", 17, 0),
        RankView("trainer", 0, "n0", "running", 17, 0),
        RankView("trainer", 1, "n2", "running", 17, 0),
    ),
    collective=("trainer",),
    nodes=(NodeState("n0", "a0", alive=True), NodeState("n1", "a1", alive=False), NodeState("n2", "a2", alive=True)),
    ranges={"rollout": (1, 4), "trainer": (1, 2)},
)


def recover(failure: Failure = LOST, view: JobView = VIEW) -> RecoveryPlan | Pass:
    plugins = JobPlugins()
    plugins.create("failover.0", RECORD, ShrinkLevel, Budget())
    found: RecoveryPlan | Pass = plugins.call("failover.0", "recover", failure=failure, view=view)
    return found


def test_roles_do_without_the_ranks_of_a_lost_node_and_everybody_starts_again_from_disk() -> None:
    plan = recover()
    assert isinstance(plan, RecoveryPlan)
    assert plan.resize == {"rollout": 2}
    assert plan.avoid == ("n1",)
    assert plan.source == "disk"
    assert set(plan.restart) == {r.ref for r in VIEW.ranks}
    assert plan.reason == "node n1 left: rollout with 2 ranks instead of 4"


def test_no_role_gets_fewer_than_its_least() -> None:
    plan = recover(view=msgspec.structs.replace(VIEW, ranges={"rollout": (3, 4)}))
    assert isinstance(plan, RecoveryPlan)
    assert plan.resize == {"rollout": 3}
    for ranges in ({"rollout": (4, 8)}, {}):
        assert isinstance(recover(view=msgspec.structs.replace(VIEW, ranges=ranges)), Pass)


def test_a_node_that_is_at_fault_is_left_as_one_that_is_gone() -> None:
    fault = Failure("exception", "trainer", 1, "n2", message="CUDA error: uncorrectable ECC error")
    living = msgspec.structs.replace(VIEW, nodes=tuple(NodeState(n, n, alive=True) for n in ("n0", "n1", "n2")))
    assert isinstance(recover(fault, living), Pass)
    plan = recover(fault, msgspec.structs.replace(living, verdict=Verdict("hardware", "an ECC error")))
    assert isinstance(plan, RecoveryPlan)
    assert (plan.resize, plan.avoid) == ({"trainer": 1}, ("n2",))
