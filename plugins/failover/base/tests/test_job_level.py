"""Everything starts again from disk, whatever has failed."""

from __future__ import annotations

import msgspec
import pytest

from rolemesh import Budget, Failure, JobView, NodeState, RankView, RecoveryPlan
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_failover_job import JobLevel

RECORD = PluginRecord("failover", "job", "rolemesh-failover", "0.1.0", "rolemesh_failover_job:JobLevel")
VIEW = JobView(
    "job",
    1,
    16,
    (RankView("rollout", 0, "n0", "running", 17, 0), RankView("trainer", 0, "n1", "gone", 17, 0, durable=16)),
    collective=(),
    nodes=(NodeState("n0", "a0", alive=True), NodeState("n1", "a1", alive=False)),
    persisted=9,
)


def recover(failure: Failure, view: JobView = VIEW) -> RecoveryPlan:
    plugins = JobPlugins()
    plugins.create("failover.0", RECORD, JobLevel, Budget())
    plan: RecoveryPlan = plugins.call("failover.0", "recover", failure=failure, view=view)
    return plan


@pytest.mark.parametrize(
    "failure",
    [Failure("signal", "rollout", 0, "n0"), Failure("node_lost", node="n1")],
    ids=lambda failure: failure.cause,
)
def test_every_rank_is_restarted_from_disk_and_none_on_a_dead_node(failure: Failure) -> None:
    plan = recover(failure)
    assert plan.restart == (("rollout", 0), ("trainer", 0))
    assert plan.source == "disk"
    assert plan.avoid == ("n1",)
    assert "step 9" in plan.reason


def test_it_says_so_when_nothing_is_on_disk_yet() -> None:
    plan = recover(Failure("signal", "rollout", 0, "n0"), msgspec.structs.replace(VIEW, persisted=-1))
    assert plan.source == "disk"
    assert "the beginning" in plan.reason
