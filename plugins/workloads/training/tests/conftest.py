"""Groups of ranks of each trainer, for the tests of what trainers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trainer_group

WORKLOADS = {
    "fsdp": "rolemesh_fsdp:FSDPWorkload",
    "ddp": "rolemesh_ddp:DDPWorkload",
    "deepspeed": "rolemesh_deepspeed:DeepSpeedWorkload",
}


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[..., list[Any]]]:
    yield from trainer_group.served(WORKLOADS["fsdp"])


@pytest.fixture(scope="module", params=[*WORKLOADS, "deepspeed 3"])
def trainer(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[..., list[Any]], dict[str, Any]]]:
    """A group of ranks, and the options that are its own."""
    name, _, stage = request.param.partition(" ")
    more = {"config": {"zero_optimization": {"stage": int(stage)}}} if stage else {}
    for group in trainer_group.served(WORKLOADS[name]):
        yield group, more
