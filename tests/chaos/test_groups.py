"""A collective group waits where it can still answer: who restarts may need from it what it lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.chaos.harness import ChaosJob, End

MORTAL = "roles.rollout.options.target=roles.py:MortalRollout"
TURNS = "placement={use: collocation, options: {groups: [{roles: [rollout, trainer], turns: true}]}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="side by side", marks=pytest.mark.soak),
        pytest.param((TURNS,), id="in turns", marks=pytest.mark.soak),
    ],
)
def test_a_rank_dies_while_a_part_of_the_trainer_has_its_input_already(
    make_job: Callable[..., ChaosJob], undisturbed: End, more: tuple[str, ...]
) -> None:
    """Restarted, it asks both trainers for the weights; one would be inside its call, waiting for the other one."""
    job = make_job("mortal")
    done = job.run(MORTAL, "roles.rollout.world_size=2", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.result()["state_sha256"]["trainer"] == undisturbed.sha256["trainer"]
    restarted = [event["data"]["plan"]["restart"] for event in job.events() if event["kind"] == "recovery_planned"]
    assert restarted == [[["rollout", 1]]]
