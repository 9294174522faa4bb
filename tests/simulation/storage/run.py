"""Plays schedules of the storage: one per seed."""

from __future__ import annotations

import traceback
from typing import NamedTuple

from tests.simulation.storage.world import Storage, Violation

__all__ = ["Result", "run_seed"]

TURNS = 300


class Result(NamedTuple):
    """How a schedule went; `broken` is the invariant that did not hold, and why, or ""."""

    seed: int
    broken: str
    trace: tuple[str, ...]


def run_seed(seed: int, *, traced: bool = False) -> Result:
    """Play one schedule."""
    broken = ""
    with Storage(seed, traced=traced) as world:
        try:
            for turn in range(TURNS):
                world.step(faults=True)
                if turn % 10 == 0:
                    world.look()
            world.settle()
        except Violation as violation:
            broken = str(violation)
        except Exception:
            broken = f"an error: {traceback.format_exc()}"
        return Result(seed, broken, tuple(world.trace or ()))
