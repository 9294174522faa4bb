"""Groups of ranks of `deepspeed`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def group() -> Iterator[Callable[..., list[Any]]]:
    """``group(scenario, world_size, options, *args)``: each rank's result; a rank's exception fails the test."""
    import trainer_group

    yield from trainer_group.served("rolemesh_deepspeed:DeepSpeedWorkload")
