"""The cost of failures, computed from the journal alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rolemesh.api.observer import Event
from rolemesh_durable.master.goodput import Account


def accounted(events: list[Event]) -> Account:
    """Kept, and taken up again, after every event."""
    account = Account()
    for event in events:
        account.apply(event)
        account = msgspec.json.decode(msgspec.json.encode(account), type=Account)
    return account


def goodput(events: list[Event], wall_s: float) -> dict[str, Any]:
    return accounted(events).goodput(wall_s)


def recoveries(events: list[Event]) -> list[dict[str, Any]]:
    return accounted(events).recoveries()


def journal(*entries: tuple[float, str, dict[str, Any]], epochs: dict[int, int] | None = None) -> list[Event]:
    """Events from (time, kind, data); `epochs` maps positions to epochs other than 1."""
    return [Event(i + 1, (epochs or {}).get(i, 1), time, kind, data) for i, (time, kind, data) in enumerate(entries)]


def planned(number: int, *causes: str, restart: tuple[tuple[str, int], ...] = (("a", 0),)) -> dict[str, Any]:
    return {
        "number": number,
        "plan": {"level": "process", "restart": [list(key) for key in restart]},
        "causes": list(causes),
        "failures": [f"it {cause}" for cause in causes],
        "were": [],
    }


FAILURE: dict[str, Any] = {"failure": {}, "silent_s": 0.0}


def test_times_are_those_of_the_master_whenever_the_journal_had_the_events_and_whatever_the_wall_clock_said() -> None:
    hour = 3600.0
    events = journal(
        (100.0, "job_started", {"at": 7.0, "clock": "boot"}),
        (101.5, "job_running", {"at": 8.0}),
        (102.5, "failure", FAILURE | {"at": 9.0}),
        (hour + 102.5, "recovery_planned", planned(1, "signal") | {"at": 9.0}),
        (hour + 103.0, "recovered", {"number": 1, "at": 9.75}),
        (hour + 104.0, "regained", {"number": 1, "at": 10.0}),
        (hour + 110.0, "job_stopping", {"at": 16.0}),
    )
    [recovery] = recoveries(events)
    assert (recovery["seconds"], recovery["regained_s"]) == (0.75, 1.0)
    assert goodput(events, 10.0)["lost_s"] == {"start": 1.0, "signal": 1.0, "stop": 1.0}


def test_an_undisturbed_job_loses_its_start_and_its_end() -> None:
    account = goodput(journal((0.0, "job_started", {}), (2.0, "job_running", {}), (9.0, "job_stopping", {})), 10.0)

    assert account["lost_s"] == {"start": 2.0, "stop": 1.0}
    assert account["share"] == 0.7


def test_a_failure_costs_until_the_ranks_are_where_they_had_been() -> None:
    account = goodput(
        journal(
            (0.0, "job_started", {}),
            (1.0, "job_running", {}),
            (4.0, "failure", FAILURE),
            (4.1, "recovery_planned", planned(1, "signal")),
            (4.5, "recovered", {"number": 1}),
            (6.0, "regained", {"number": 1}),
            (10.0, "job_stopping", {}),
        ),
        10.0,
    )

    assert account["lost_s"] == {"start": 1.0, "signal": 2.0}
    assert account["share"] == 0.7


@pytest.mark.parametrize(("saved", "share"), [((), 0.0), ((3.0, 6.0), 0.5)])
def test_a_job_that_failed_keeps_what_it_did_up_to_its_last_checkpoint(saved: tuple[float, ...], share: float) -> None:
    """It began after one second; of the other nine it keeps those up to its last checkpoint, six seconds in."""
    events = journal(
        (0.0, "job_started", {}),
        (1.0, "job_running", {}),
        *((at, "persisted", {"step": int(at)}) for at in saved),
        (8.0, "failure", FAILURE),
        (8.0, "job_stopping", {"status": "failed"}),
    )
    lost = goodput(events, 10.0)["lost_s"]

    assert lost == {"start": 1.0, "unsaved": 8.0 - max(saved, default=1.0), "stop": 2.0}
    assert goodput(events, 10.0)["share"] == share


def test_a_hang_costs_from_the_last_progress_on() -> None:
    account = goodput(
        journal(
            (0.0, "job_started", {}),
            (0.0, "job_running", {}),
            (8.0, "failure", {"failure": {}, "silent_s": 5.0}),
            (8.0, "recovery_planned", planned(1, "hang")),
            (9.0, "recovered", {"number": 1}),
            (9.0, "regained", {"number": 1}),
        ),
        10.0,
    )

    assert account["lost_s"] == {"hang": 6.0}


def test_a_recovery_that_was_merged_into_the_next_costs_once_from_the_first_failure() -> None:
    events = journal(
        (0.0, "job_started", {}),
        (0.0, "job_running", {}),
        (2.0, "failure", FAILURE),
        (2.0, "recovery_planned", planned(1, "signal")),
        (3.0, "failure", FAILURE),
        (3.0, "recovery_planned", planned(2, "signal", "agent_lost", restart=(("a", 0), ("b", 1)))),
        (5.0, "recovered", {"number": 2}),
        (5.5, "regained", {"number": 2}),
    )

    assert goodput(events, 10.0)["lost_s"]["signal"] == 3.5
    first, second = recoveries(events)
    assert (first["outcome"], second["outcome"]) == ("merged", "recovered")
    assert second["seconds"] == 3.0
    assert second["regained_s"] == 3.5
    assert second["restarted"] == ["a/0", "b/1"]


def test_without_a_master_nothing_is_lost_but_it_is_said() -> None:
    account = goodput(
        journal(
            (0.0, "job_started", {}),
            (0.0, "job_running", {}),
            (5.0, "committed", {"step": 3}),
            (6.5, "master_recovered", {"epoch": 2}),
            epochs={3: 2},
        ),
        10.0,
    )

    assert account["share"] == 1.0
    assert account["master_down_s"] == 1.5


def test_an_empty_journal_has_no_account() -> None:
    assert goodput([], 1.0)["share"] is None
    assert recoveries([]) == []


def test_a_job_that_fails_very_often_has_the_same_account_of_bounded_size() -> None:
    entries: list[tuple[float, str, dict[str, Any]]] = [(0.0, "job_started", {}), (1.0, "job_running", {})]
    for number in range(1, 2001):
        at = 10.0 * number
        entries += [
            (at, "failure", FAILURE),
            (at, "recovery_planned", planned(number, "signal")),
            (at + 0.5, "recovered", {"number": number}),
            (at + 1.0, "regained", {"number": number}),
        ]
    account = Account()
    for event in journal(*entries):
        account.apply(event)
    assert account.goodput(30_000.0)["lost_s"] == {"start": 1.0, "signal": 2000.0}
    assert [one["number"] for one in account.recoveries()] == list(range(1501, 2001))
    assert len(msgspec.json.encode(account)) < 200_000
