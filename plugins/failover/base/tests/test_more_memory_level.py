"""A role that has run out of memory gets more, as far as the job file allows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rolemesh import Failure, JobView, Pass, RankView, RecoveryPlan, Verdict
from rolemesh_failover_more_memory import MoreMemoryLevel

OUT = Failure("exception", "rollout", 1, "n0", message="MemoryError: ")
SAID = Verdict("software", "out of memory")
VIEW = JobView(
    "job",
    1,
    16,
    tuple(RankView("rollout", rank, "n0", "running", 17, 0) for rank in range(2)),
    collective=(),
    verdict=SAID,
    resources={"rollout": {"cpu": 1.0, "gpu": 0.0, "memory_gb": 4.0}},
    most={"rollout": {"memory_gb": 10.0}},
)


def recover(failure: Failure = OUT, view: JobView = VIEW, **options: Any) -> RecoveryPlan | Pass:
    level = MoreMemoryLevel(MoreMemoryLevel.Options.model_validate(options))
    found: RecoveryPlan | Pass = level.recover(failure, view)
    return found


@pytest.mark.parametrize(("has", "gets"), [(4.0, 8.0), (8.0, 10.0)])
def test_a_role_gets_twice_the_memory_up_to_its_limit(has: float, gets: float) -> None:
    plan = recover(view=msgspec.structs.replace(VIEW, resources={"rollout": {"memory_gb": has}}))
    assert isinstance(plan, RecoveryPlan)
    assert (plan.restart, plan.source) == ((("rollout", 1),), "memory")
    assert plan.resources == {"rollout": {"memory_gb": gets}}
    assert plan.reason == f"rollout ran out of memory: memory_gb {gets:g} instead of {has:g}"


@pytest.mark.parametrize(
    "changed",
    [
        {"resources": {"rollout": {"memory_gb": 10.0}}},
        {"resources": {"rollout": {"cpu": 1.0}}},
        {"most": {}},
        {"verdict": Verdict("software", "out of memory on the GPU")},
        {"verdict": Verdict("software", "killed from outside")},
    ],
)
def test_failures_that_more_memory_does_not_cure_are_passed_on(changed: dict[str, Any]) -> None:
    assert isinstance(recover(view=msgspec.structs.replace(VIEW, **changed)), Pass)


def test_a_rank_that_was_killed_counts_only_if_asked_for() -> None:
    killed, view = Failure("signal", "rollout", 1, "n0", signal=9), msgspec.structs.replace(VIEW, verdict=None)
    assert isinstance(recover(killed, view), Pass)
    assert isinstance(recover(killed, view, killed=True), RecoveryPlan)
