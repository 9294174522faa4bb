"""The smallest restart: a rank, its group, or what an agent had; nothing where memory is lost."""

from __future__ import annotations

from rolemesh import Budget, Failure, JobView, RankView, RecoveryPlan
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_failover_process import ProcessLevel

RECORD = PluginRecord("failover", "process", "rolemesh-failover", "0.1.0", "rolemesh_failover_process:ProcessLevel")
VIEW = JobView(
    "job",
    1,
    6,
    (
        RankView("rollout", 0, "n0", "running", 7, 0),
        RankView("rollout", 1, "n1", "running", 7, 0),
        RankView("trainer", 0, "n0", "running", 7, 0, durable=6),
        RankView("trainer", 1, "n1", "running", 7, 0, durable=6),
    ),
    collective=("trainer",),
    stateful=("trainer",),
)


def recover(failure: Failure) -> RecoveryPlan | None:
    plugins = JobPlugins()
    plugins.create("failover.0", RECORD, ProcessLevel, Budget())
    plan: RecoveryPlan | None = plugins.call("failover.0", "recover", failure=failure, view=VIEW)
    return plan


def test_an_independent_rank_is_restarted_alone_where_it_was_and_from_memory() -> None:
    plan = recover(Failure("signal", "rollout", 1, "n1"))
    assert plan is not None
    assert plan.restart == (("rollout", 1),)
    assert (plan.source, plan.avoid, plan.wait_s) == ("memory", (), 0.0)


def test_a_rank_of_a_collective_role_takes_its_group_with_it_across_nodes() -> None:
    plan = recover(Failure("exit", "trainer", 1, "n1"))
    assert plan is not None
    assert plan.restart == (("trainer", 0), ("trainer", 1))


def test_a_lost_agent_restarts_its_ranks_and_their_groups() -> None:
    plan = recover(Failure("agent_lost", node="n0"))
    assert plan is not None
    assert set(plan.restart) == {("rollout", 0), ("trainer", 0), ("trainer", 1)}


def test_a_lost_node_is_passed_on_because_its_memory_is_lost() -> None:
    assert recover(Failure("node_lost", node="n0")) is None


def test_a_failure_that_takes_no_rank_of_the_job_is_passed_on() -> None:
    assert recover(Failure("agent_lost", node="elsewhere")) is None
