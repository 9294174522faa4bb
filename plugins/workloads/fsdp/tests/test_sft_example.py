"""The repository's SFT example, without the kernel around it: its options, its data, and that two ranks learn it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trainer_group
import yaml

from rolemesh.api.workload import RankContext
from rolemesh_fsdp import FSDPOptions, FSDPWorkload
from rolemesh_function import FunctionOptions, FunctionWorkload

EXAMPLE = Path(__file__).parents[4] / "examples" / "sft"


@pytest.fixture
def job():
    return yaml.safe_load((EXAMPLE / "job.yaml").read_text())


@pytest.fixture
def batches(job):
    """Return the batches that the data role gives the trainer in each step, through the `function` workload."""
    given = job["roles"]["data"]["options"]
    context = RankContext(seed=job["seed"])
    role = FunctionWorkload(FunctionOptions.model_validate(given, context={"base": str(EXAMPLE)}))
    role.setup(context)
    found = []
    for context.step in range(job["steps"]):
        found.append(role.next())
    return found


@pytest.fixture
def options(job):
    return FSDPOptions.model_validate(job["roles"]["trainer"]["options"], context={"base": str(EXAMPLE)})


def test_its_options_pass_the_driver_check(job, options):
    FSDPWorkload.check(options, job["roles"]["trainer"]["world_size"])


def test_its_sentences_belong_to_steps(batches):
    assert batches[0].rows == 16
    assert batches[0] != batches[1]


def test_its_loss_falls_on_two_ranks(batches, options, group):
    losses = group(trainer_group.losses, 2, options.model_dump(mode="json"), batches, [8, 8])[0]
    assert losses[0] == pytest.approx(np.log(256), rel=0.05)
    assert np.mean(losses[-10:]) < 0.5 * losses[0]
