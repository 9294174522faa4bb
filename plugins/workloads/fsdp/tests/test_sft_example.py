"""The repository's SFT example, without the kernel around it: its options, its data, and that two ranks learn it."""

from __future__ import annotations

from pathlib import Path

import fsdp_group
import numpy as np
import pytest
import yaml

from rolemesh.imports import ImportRef
from rolemesh_fsdp import FSDPOptions, FSDPWorkload

EXAMPLE = Path(__file__).parents[4] / "examples" / "sft"


@pytest.fixture
def job():
    return yaml.safe_load((EXAMPLE / "job.yaml").read_text())


@pytest.fixture
def data(job):
    return ImportRef(job["roles"]["data"]["options"]["target"], str(EXAMPLE)).resolve()


@pytest.fixture
def options(job):
    return FSDPOptions.model_validate(job["roles"]["trainer"]["options"], context={"base": str(EXAMPLE)})


def test_its_options_pass_the_driver_check(job, options):
    FSDPWorkload.check(options, job["roles"]["trainer"]["world_size"])


def test_its_data_continues_from_a_snapshot(data):
    straight, early = data(), data()
    early.next()
    resumed = data()
    resumed.restore(early.snapshot())
    straight.next()
    assert straight.next() == resumed.next()
    assert straight.next() != data().next()


def test_its_loss_falls_on_two_ranks(job, data, options, group):
    source = data()
    batches = [source.next() for _ in range(job["steps"])]
    losses = group(fsdp_group.losses, 2, options.model_dump(mode="json"), batches, [8, 8])[0]
    assert losses[0] == pytest.approx(np.log(256), rel=0.05)
    assert np.mean(losses[-10:]) < 0.5 * losses[0]
