"""Schedules of the real storage code over a file system that fails, and faults in that code that they find."""

from __future__ import annotations

import pytest
from tests.simulation.seeds import Mutation, find, quiet, replayable
from tests.simulation.storage.mutations import MUTATIONS
from tests.simulation.storage.run import run_seed

__all__ = ["quiet"]

MODULE = "tests.simulation.storage"
SCHEDULES = 60
ENOUGH = 150
"""Maximum number of schedules until a mutation is found."""


def test_every_invariant_holds() -> None:
    found = [run_seed(seed) for seed in range(SCHEDULES)]
    assert not replayable(MODULE, found)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_invariant_holds_in_ten_thousand_schedules() -> None:
    broken = [result for seed in range(10_000) if (result := run_seed(seed)).broken]
    assert not replayable(MODULE, broken)


def test_a_schedule_is_played_again() -> None:
    for seed in (1, 2):
        assert run_seed(seed, traced=True) == run_seed(seed, traced=True)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    find(mutation, run_seed, ENOUGH)
