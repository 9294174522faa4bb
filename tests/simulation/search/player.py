"""Plays the schedules of a search in a process of its own, where the engine's modules count their blocks."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from tests.simulation.schedule import Schedule
from tests.simulation.search import blocks

__all__ = ["DISKS", "Played", "begin", "play"]

DISKS = ("storage", "store")
"""The families of `tests.simulation.storage` and `.store`: they have weather of their own, and no streams."""
Feature = tuple[str, int, int]
"""See `blocks.features`."""


class Played(NamedTuple):
    """A schedule that was played."""

    schedule: Schedule
    broken: str
    """The invariant that did not hold, or ""."""
    new: frozenset[Feature]
    """Features that this process had not seen before."""
    draws: int
    """The number of draws of the world."""
    seconds: float


_known: set[Feature] = set()


def begin() -> None:
    """Prepare the process."""
    blocks.install()
    logging.disable(logging.CRITICAL)


def play(schedule: Schedule) -> Played:
    """Play a schedule."""
    began, draws = time.process_time(), 0
    if schedule.family in DISKS:
        from tests.simulation import storage, store  # noqa: F401 - packages
        from tests.simulation.storage.run import run_seed as run_storage
        from tests.simulation.store.run import run_seed as run_store

        blocks.reset()
        broken = (run_store if schedule.family == "store" else run_storage)(schedule.seed).broken
    else:
        from tests.simulation.run import run, scenario_of

        scenario = scenario_of(schedule)
        blocks.reset()
        world, broken = run(scenario)
        draws = world.draws
    new = blocks.features() - _known
    _known.update(new)
    return Played(schedule, broken, new, draws, time.process_time() - began)
