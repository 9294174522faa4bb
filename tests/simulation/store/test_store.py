"""Schedules of masters over a database, a disk and clocks that fail, and faults in the real code that they find."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.simulation.seeds import Mutation, find, quiet, replayable
from tests.simulation.store.mutations import MUTATIONS
from tests.simulation.store.run import run_seed

__all__ = ["quiet"]

MODULE = "tests.simulation.store"
SCHEDULES = 12
ENOUGH = 60
"""Maximum number of schedules until a mutation is found."""


def test_every_invariant_holds() -> None:
    found = [run_seed(seed) for seed in range(SCHEDULES)]
    assert not replayable(MODULE, found)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_invariant_holds_in_ten_thousand_schedules() -> None:
    with ProcessPoolExecutor() as processes:
        found = list(processes.map(run_seed, range(10_000), chunksize=50))
    assert not replayable(MODULE, found)


def test_a_schedule_is_played_again() -> None:
    for seed in (1, 2):
        assert run_seed(seed, traced=True) == run_seed(seed, traced=True)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    find(mutation, run_seed, ENOUGH)
