"""Plays schedules of the storage: one per seed."""

from __future__ import annotations

from tests.simulation.seeds import Result, play
from tests.simulation.storage.world import Storage

__all__ = ["run_seed"]

TURNS = 300


def run_seed(seed: int, *, traced: bool = False) -> Result:
    """Play one schedule."""
    return play(seed, Storage(seed, traced=traced), TURNS)
