"""Plays schedules of masters and their journal: one per seed."""

from __future__ import annotations

from tests.simulation.seeds import Result, play
from tests.simulation.store.world import Masters

__all__ = ["run_seed"]

TURNS = 400


def run_seed(seed: int, *, traced: bool = False) -> Result:
    """Play one schedule."""
    world = Masters(seed, traced=traced)
    world.files.slow = 1.0  # so that every call on the disk passes by
    return play(seed, world, TURNS)
