"""Ten thousand schedules in which every invariant holds, and faults in the machines that they find."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.simulation.checks import INVARIANTS
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.run import run_many, run_seed

SCHEDULES = 10_000
ENOUGH = 1_500
"""So many schedules at most are played until a mutation is found."""


def test_every_invariant_holds_in_ten_thousand_schedules() -> None:
    broken: list[str] = []
    totals: Counter[str] = Counter()
    for result in run_many(range(SCHEDULES), processes=os.cpu_count() or 2):
        totals["faults"] += result.faults
        totals["recoveries"] += result.recoveries
        totals.update(result.levels)
        if result.broken:
            broken.append(f"python -m tests.simulation {result.seed}  # {result.family}: {result.broken}")
    assert not broken, "\n".join(broken)
    assert totals["faults"] > 2 * SCHEDULES, totals
    assert totals["recoveries"] > SCHEDULES, totals
    assert min(totals["process"], totals["node"], totals["job"]) > SCHEDULES / 20, totals


def test_a_schedule_is_played_again_event_by_event() -> None:
    for seed in (3, 8, 11):
        first, second = (run_seed(seed, traced=True) for _ in range(2))
        assert first == second
        assert len(first.trace) > 10


def test_every_invariant_has_a_fault_that_it_finds() -> None:
    assert {mutation.invariant for mutation in MUTATIONS} == set(INVARIANTS)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    found: Counter[str] = Counter()
    with mutation.apply():
        for seed in range(ENOUGH):
            broken = run_seed(seed, family=mutation.family).broken
            found[broken.partition(":")[0]] += 1
            if broken.startswith(mutation.invariant):
                return
    pytest.fail(f"{mutation.invariant} holds in {ENOUGH} schedules: {dict(found)}")
