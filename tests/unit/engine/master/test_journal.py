"""The journal of a long job is compacted under its master, and the next master begins with what is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.protocol.master.test_machine import job
from tests.waiting import HANG_S

from rolemesh.api.observer import Event
from rolemesh_durable.journal.event_log import EventLog, Stored
from rolemesh_durable.master.history import History, read_head
from rolemesh_durable.master.journal import KEPT, Claimed, Journal
from rolemesh_durable.master.writer import Writer
from rolemesh_durable.protocol.master.state import JobState

RECOVERIES = 700


def fresh() -> JobState:
    return JobState.of(job(ranks=2).config)


class Master:
    """The part of a master that writes and reads its journal."""

    def __init__(self, run_dir: Path) -> None:
        self._woken = threading.Event()
        self._writer = Writer("test", self._woken.set)
        self.journal = Journal(
            partial(EventLog.open, "sqlite", run_dir, "job"),
            run_dir,
            self._writer,
            fresh,
            lambda: self.journal.history.seq,
        )
        self.claimed: list[Claimed] = []
        self.journal.claim(self.claimed.append, patient=False)
        self.settle()

    def append(self, *records: tuple[str, dict[str, Any]], committed: int | None = None) -> list[Event]:
        found: list[Event] = []
        self.journal.append(list(records), found.extend, committed)
        self.settle()
        return found

    def settle(self) -> None:
        while self._writer.busy:
            assert self._woken.wait(HANG_S)
            self._woken.clear()
            self._writer.collect()

    def close(self) -> None:
        self._writer.close()
        self.journal.close()


BEGUN = ("job_started", {"name": "job", "steps": 9, "agents": ["a0"], "ranks": 1, "at": 0.0, "clock": "boot"})


def recovery(number: int) -> list[tuple[str, dict[str, Any]]]:
    """The records of one recovery of work/0."""
    at = float(number)
    plan = {"level": "process", "restart": [["work", 0]], "source": "memory", "reason": "because"}
    failure = {"cause": "signal", "role": "work", "rank": 0, "message": "killed"}
    started = {"role": "work", "rank": 0, "generation": number, "agent": "a0", "resume": -1, "restore": "none"}
    return [
        ("failure", {"failure": failure, "silent_s": 0.0, "at": at}),
        (
            "recovery_planned",
            {
                "number": number, "plan": plan, "failures": ["killed"], "were": [["work", 0, number]], "attempt": 1,
                "causes": ["signal"], "trail": [], "at": at,
            },
        ),
        ("recovery_launched", {"number": number, "ranks": [started | {"replica": ""}], "at": at}),
        ("rank_up", {"role": "work", "rank": 0, "generation": number, "pid": 100 + number, "node": "n0"}),
        ("rank_ready", {"role": "work", "rank": 0, "generation": number, "setup_s": 0.1}),
        ("recovered", {"number": number, "level": "process", "restarted": ["work/0"], "seconds": 0.1, "at": at}),
        ("regained", {"number": number, "at": at}),
    ]  # fmt: skip


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Any]:
    made: list[Master] = []

    def make() -> Master:
        made.append(Master(tmp_path))
        return made[-1]

    yield make
    for master in made:
        master.close()


def test_after_many_failures_a_master_starts_with_the_state_of_the_whole_journal(masters: Any, tmp_path: Path) -> None:
    first = masters()
    every = first.append(BEGUN, ("job_running", {"at": 0.0}))
    for number in range(1, RECOVERIES + 1, 10):
        batch = [record for each in range(number, number + 10) for record in recovery(each)]
        every += first.append(*batch, committed=number)
    assert [event.seq for event in every] == list(range(1, 2 + 7 * RECOVERIES + 1))

    second = masters()
    (found,) = second.claimed
    assert found.epoch == 2
    assert KEPT <= len(found.stored.events) < 2 * KEPT + 100
    assert found.stored.events == every[-len(found.stored.events) :]
    assert found.stored.committed == RECOVERIES - 9
    whole = History(fresh, Stored(found.stored.committed, 0, "", every))
    kept, told = (read_head(each.head()) for each in (second.journal.history, whole))
    assert kept == told
    assert len(second.journal.history.head()) < 1_000_000
    with EventLog.open("sqlite", tmp_path, "job") as reader:
        assert [event.seq for event in reader.events(limit=3)] == [found.stored.events[0].seq + i for i in range(3)]


def test_a_master_goes_on_with_the_recovery_that_was_under_way_when_the_journal_was_compacted(masters: Any) -> None:
    first = masters()
    first.append(BEGUN, ("job_running", {"at": 0.0}))
    first.append(*(record for number in range(1, 300) for record in recovery(number)))
    first.append(*recovery(300)[:3], committed=4)
    state = fresh()
    masters().journal.history.continue_with(state, "boot", 400.0, 1e9)
    assert state.recovery is not None
    assert state.recovery.number == 300
    assert state.ranks["work", 0].launch.generation == 300
    assert (state.phase, state.committed) == ("running", 4)
