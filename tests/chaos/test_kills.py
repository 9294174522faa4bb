"""Ranks, agents and the master are killed at random moments, and the job ends as if nothing had happened.

Every run has two kills of each, also while it is being brought back from the one before, while snapshots are taken
(after each step) and written to disk (after every second). The first seed on this machine and the first on Ray are
played in every test run, the others in the soak. To see one again: ``rolemesh run
tests/chaos/post_training/job.yaml --backend local --chaos kills=6,seed=N --chaos-compare``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.chaos.harness import ChaosJob, End, as_if_nothing_had_happened, injected_while, told

Make = Callable[..., ChaosJob]
KILLS = 6
LOCAL, NODES, RAY = range(15), range(15, 20), range(20, 26)
"""The seeds."""
TWO_NODES = ("--nodes", "2x(cpu=1)", "roles.trainer.resources.cpu=0.7", "engine.options.snapshots.replicas=1")
ON_RAY = ("roles.trainer.resources.cpu=1.4", "engine.options.snapshots.replicas=1")


def seeds(of: range) -> list[Any]:
    """The first for every test run, the others for the soak."""
    return [of[0], *(pytest.param(seed, marks=pytest.mark.soak) for seed in of[1:])]


def disturbed(job: ChaosJob, seed: int, undisturbed: End, *args: str) -> dict[str, Any]:
    done = job.rehearse(f"kills={KILLS},seed={seed}", *args)
    assert done.returncode == 0, f"{told(job)}\n{done.stdout}{done.stderr}"
    as_if_nothing_had_happened(job, undisturbed)
    return injected_while(job)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(LOCAL))
def test_kills_leave_no_trace(make_job: Make, undisturbed: End, tally: Any, seed: int) -> None:
    tally["local"].append(disturbed(make_job(f"chaos-{seed}"), seed, undisturbed))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("seed", NODES)
def test_kills_leave_no_trace_on_two_nodes(make_job: Make, undisturbed: End, tally: Any, seed: int) -> None:
    tally["local"].append(disturbed(make_job(f"chaos-{seed}"), seed, undisturbed, *TWO_NODES))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("seed", RAY)
def test_kills_leave_no_trace_on_ray(make_job: Make, undisturbed: End, tally: Any, ray_address: str, seed: int) -> None:
    job = make_job(f"chaos-{seed}", ("--address", ray_address))
    tally["ray"].append(disturbed(job, seed, undisturbed, *ON_RAY))


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("backend", "runs"),
    [("local", len(LOCAL) + len(NODES) - 1), pytest.param("ray", len(RAY) - 1, marks=pytest.mark.ray)],
)
def test_the_runs_had_enough_kills_of_every_kind(tally: Any, backend: str, runs: int) -> None:
    if len(tally[backend]) < runs:
        pytest.skip("counts the kills of a whole soak of this file")
    total = {kind: sum(run[kind] for run in tally[backend]) for kind in tally[backend][0]}
    assert all(total[kind] > runs for kind in ("rank", "agent", "master")), total
    assert total["recovering"] > runs / 2, total
