"""Plays schedules of masters and their journal: one per seed."""

from __future__ import annotations

import traceback

from tests.simulation.storage.run import Result
from tests.simulation.storage.world import Violation
from tests.simulation.store.world import Masters

__all__ = ["run_seed"]

TURNS = 400


def run_seed(seed: int, *, traced: bool = False) -> Result:
    """Play one schedule."""
    broken = ""
    with Masters(seed, traced=traced) as world:
        try:
            world.files.slow = 1.0  # so that every call on the disk passes by
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
