"""Schedules of the real storage code over a file system that fails, and faults in that code that they find."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.simulation.storage.mutations import MUTATIONS, Mutation
from tests.simulation.storage.run import run_seed

SCHEDULES = 60
ENOUGH = 150
"""So many schedules at most are played until a mutation is found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # what fails is what is wanted here
    yield
    logging.disable(logging.NOTSET)


def test_every_invariant_holds() -> None:
    found = [run_seed(seed) for seed in range(SCHEDULES)]
    assert not [f"python -m tests.simulation.storage {each.seed}  # {each.broken}" for each in found if each.broken]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_invariant_holds_in_ten_thousand_schedules() -> None:
    broken = [result for seed in range(10_000) if (result := run_seed(seed)).broken]
    assert not [f"python -m tests.simulation.storage {each.seed}  # {each.broken}" for each in broken]


def test_a_schedule_is_played_again() -> None:
    for seed in (1, 2):
        assert run_seed(seed, traced=True) == run_seed(seed, traced=True)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    found: Counter[str] = Counter()
    with mutation.apply():
        for seed in range(ENOUGH):
            broken = run_seed(seed).broken
            found[broken.partition(":")[0]] += 1
            if broken.startswith(mutation.invariants):
                return
    pytest.fail(f"{mutation.invariants} hold in {ENOUGH} schedules: {dict(found)}")
