"""Schedules in which every invariant holds, some hundred in every test run and ten thousand in the soak, and faults in
the machines that they find."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.simulation.checks import INVARIANTS
from tests.simulation.first import first_schedules
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.rank import SimRank
from tests.simulation.run import Result, run_many, run_seed

from rolemesh_durable.protocol.edge import LogLost

FEW, MANY = 150, 10_000
KEEPING = 60
ENOUGH = 1_500
"""Maximum number of schedules until a mutation is found."""
RARE = ("mates copy a snapshot that not all of them have",)
"""Mutations that took long to show since ranks wait in one way: 1,500 schedules from their former first one did not."""


def played(schedules: int) -> Iterator[Result]:
    """Play the first schedules: few in this process, many in a process per core."""
    if schedules > FEW:
        yield from run_many(range(schedules), processes=os.cpu_count() or 2)
    else:
        yield from map(run_seed, range(schedules))


@pytest.mark.parametrize(
    "schedules", [FEW, pytest.param(MANY, marks=[pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_every_invariant_holds_in_every_schedule(schedules: int) -> None:
    broken: list[str] = []
    totals: Counter[str] = Counter()
    for result in played(schedules):
        totals["faults"] += result.faults
        totals["recoveries"] += result.recoveries
        totals.update(result.levels)
        if result.broken:
            broken.append(f"python -m tests.simulation {result.seed}  # {result.family}: {result.broken}")
    assert not broken, "\n".join(broken)
    assert totals["faults"] > 1.5 * schedules, totals
    assert totals["recoveries"] > 0.9 * schedules, totals
    assert min(totals["process"], totals["node"], totals["job"]) > schedules / 25, totals


def test_a_job_without_snapshots_keeps_its_last_state_in_every_schedule() -> None:
    results = [run_seed(seed, family="last") for seed in range(KEEPING)]
    broken = [f"{result.seed}: {result.broken}" for result in results if result.broken]
    assert not broken, "\n".join(broken)
    assert sum(result.faults for result in results) > KEEPING


def test_the_parts_of_an_extension_hear_each_other_in_every_schedule() -> None:
    results = [run_seed(seed, family="messages") for seed in range(KEEPING)]
    broken = [f"{result.seed}: {result.broken}" for result in results if result.broken]
    assert not broken, "\n".join(broken)
    assert sum(result.faults for result in results) > KEEPING


@pytest.mark.parametrize(
    "schedules",
    [KEEPING // 2, pytest.param(2 * MANY, marks=[pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_every_conversation_is_repeated_as_it_was(schedules: int) -> None:
    if schedules > FEW:
        results = list(run_many(range(schedules), family="conversations", processes=os.cpu_count() or 2))
    else:
        results = [run_seed(seed, family="conversations") for seed in range(schedules)]
    broken = [f"{result.seed}: {result.broken}" for result in results if result.broken]
    assert not broken, "\n".join(broken)
    assert sum(result.recoveries for result in results) > 3 * schedules


def test_a_schedule_is_played_again_event_by_event() -> None:
    for seed in (3, 8, 11):
        first, second = (run_seed(seed, traced=True) for _ in range(2))
        assert first == second
        assert len(first.trace) > 10


@pytest.mark.parametrize("waiting", [True, False], ids=["while it waits", "before it waits"])
def test_a_rank_that_has_lost_its_log_handles_nothing_more(waiting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[SimRank] = []
    later: list[SimRank] = []
    original = SimRank._frame

    def handle(rank: SimRank, frame: tuple[Any, ...]) -> None:
        if lost:
            later.append(rank)
        elif rank.finished >= 0 and waiting is (rank._until is not None):
            lost.append(rank)
            rank.world.at(0.001, rank.receive, frame)
            raise LogLost("a consumer has used it")
        original(rank, frame)

    monkeypatch.setattr(SimRank, "_frame", handle)
    assert not run_seed(0, family="versions").broken
    assert lost
    assert later
    assert lost[0] not in later


def test_the_listed_first_schedules_are_those_of_existing_mutations() -> None:
    assert first_schedules().keys() <= {mutation.name for mutation in MUTATIONS}


def test_each_fault_has_a_name_of_its_own() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


def test_every_invariant_has_a_fault_that_it_finds() -> None:
    assert {mutation.invariant for mutation in MUTATIONS} == set(INVARIANTS)


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.name not in RARE], ids=lambda mutation: mutation.name)
def test_a_fault_is_found(mutation: Mutation) -> None:
    found, seen = mutation.search(first_schedules().get(mutation.name, 0), ENOUGH)
    assert found is not None, f"{mutation.invariant} holds in {ENOUGH} schedules: {dict(seen)}"


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.name in RARE], ids=lambda mutation: mutation.name)
def test_a_rare_fault_is_found(mutation: Mutation) -> None:
    found, seen = mutation.search(0, MANY)
    assert found is not None, f"{mutation.invariant} holds in {MANY} schedules: {dict(seen)}"
