"""A node is left: by all its ranks and their groups, with or without waiting for another."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh import Failure, JobView, RankView, RecoveryPlan
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_failover_node import NodeLevel, NodeOptions

RECORD = PluginRecord("failover", "node", "rolemesh-failover", "0.1.0", "rolemesh_failover_node:NodeLevel")
VIEW = JobView(
    "job",
    1,
    6,
    (
        RankView("rollout", 0, "n0", "running", 7, 0),
        RankView("rollout", 1, "n1", "running", 7, 0),
        RankView("reward", 0, "n1", "running", 7, 0),
        RankView("trainer", 0, "n1", "running", 7, 0, durable=6),
        RankView("trainer", 1, "n2", "running", 7, 0, durable=6),
    ),
    collective=("trainer",),
    stateful=("trainer",),
)


def recover(failure: Failure, **options: Any) -> RecoveryPlan | None:
    plugins = JobPlugins()
    plugins.create("failover.0", RECORD, NodeLevel, NodeOptions(**options))
    plan: RecoveryPlan | None = plugins.call("failover.0", "recover", failure=failure, view=VIEW)
    return plan


@pytest.mark.parametrize(
    "failure",
    [
        Failure("node_lost", node="n1"),
        Failure("agent_lost", node="n1"),
        Failure(
            "exception", "reward", 0, "n1", message="RuntimeError: CUDA error: uncorrectable ECC error encountered"
        ),
        Failure("straggler", "rollout", 1),
    ],
    ids=lambda failure: failure.cause,
)
def test_all_ranks_of_the_node_leave_it_and_groups_come_along_from_other_nodes(failure: Failure) -> None:
    plan = recover(failure)
    assert plan is not None
    assert plan.avoid == ("n1",)
    assert plan.source == "memory"
    assert sorted(plan.restart) == [("reward", 0), ("rollout", 1), ("trainer", 0), ("trainer", 1)]


def test_a_full_cluster_is_waited_for_or_not_as_configured() -> None:
    failure = Failure("node_lost", node="n0")
    waiting, failing = recover(failure, node_wait_s=7), recover(failure, node_wait_s=7, when_full="fail")
    assert waiting is not None
    assert failing is not None
    assert (waiting.wait_s, failing.wait_s) == (7.0, 0.0)
    assert waiting.restart == failing.restart == (("rollout", 0),)


def test_a_failure_of_nobody_that_the_job_has_is_passed_on() -> None:
    assert recover(Failure("node_lost", node="n7")) is None
    assert recover(Failure("exit", "critic", 0)) is None


@pytest.mark.parametrize("options", [{"when_full": "panic"}, {"node_wait_s": 0}, {"node_wait": 5}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NodeOptions(**options)
