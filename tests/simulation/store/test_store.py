"""Schedules of masters over a database, a disk and clocks that fail, and faults in the real code that they find."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from tests.simulation.store.mutations import MUTATIONS, Mutation
from tests.simulation.store.run import run_seed

SCHEDULES = 12
ENOUGH = 60
"""So many schedules at most are played until a mutation is found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # what fails is what is wanted here
    yield
    logging.disable(logging.NOTSET)


def test_every_invariant_holds() -> None:
    found = [run_seed(seed) for seed in range(SCHEDULES)]
    assert not [f"python -m tests.simulation.store {each.seed}  # {each.broken}" for each in found if each.broken]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_invariant_holds_in_ten_thousand_schedules() -> None:
    with ProcessPoolExecutor() as processes:
        found = list(processes.map(run_seed, range(10_000), chunksize=50))
    assert not [f"python -m tests.simulation.store {each.seed}  # {each.broken}" for each in found if each.broken]


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
