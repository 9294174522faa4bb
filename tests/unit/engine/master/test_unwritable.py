"""When a job that should end does so although its journal cannot be written."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rolemesh_durable.master.unwritable import PATIENCE_S, Wish
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import OWNER_START_S

LEASE_S = 5.0
LONG = round(10 * (PATIENCE_S + OWNER_START_S + LEASE_S))
STOP = e.StopAsked("Ctrl-C")


def ends(events: dict[int, e.Event], stuck: Iterable[int], *, owned: bool = False, until: int = LONG) -> int | None:
    """Return the second at which the job ends without its journal, of a master that looks ten times a second."""
    wish, stuck = Wish(LEASE_S), set(stuck)
    for tick in range(10 * until):
        second = tick // 10
        if tick % 10 == 0 and second in events:
            wish.note(events[second])
        if wish.overdue(tick / 10, stuck=second in stuck, owned=owned):
            return second
    return None


@pytest.mark.parametrize(
    ("events", "stuck", "end"),
    [
        pytest.param({5: STOP}, range(2, LONG), 5, id="asked while it is stuck"),
        pytest.param({2: STOP}, range(5, LONG), 5, id="asked before"),
        pytest.param({2: STOP, 9: STOP}, range(1, LONG), 2, id="the first request counts"),
    ],
)
def test_a_job_that_is_asked_to_end_waits_some_seconds_for_its_journal(
    events: dict[int, e.Event], stuck: range, end: int
) -> None:
    found = ends(events, stuck)
    assert found is not None
    assert abs(found - end - PATIENCE_S) <= 1


@pytest.mark.parametrize(
    ("events", "stuck"),
    [
        pytest.param({}, range(LONG), id="nobody asks"),
        pytest.param({5: STOP}, (), id="it is not stuck"),
        pytest.param({5: STOP}, (each for each in range(LONG) if each % 9), id="it is stuck a little, again and again"),
    ],
)
def test_a_job_does_not_end_without_its_journal_otherwise(events: dict[int, e.Event], stuck: Iterable[int]) -> None:
    assert ends(events, stuck) is None


def test_a_job_whose_owner_has_died_ends() -> None:
    seen: dict[int, e.Event] = {second: e.OwnerSeen() for second in range(20)}
    found = ends(seen, range(10, LONG), owned=True)
    assert found is not None
    assert abs(found - 19 - LEASE_S - PATIENCE_S) <= 1
    assert ends(seen, range(10, LONG)) is None
    assert ends({**seen, 19: e.Disown()}, range(10, LONG), owned=True) is None
    assert ends({second: e.OwnerSeen() for second in range(LONG)}, range(10, LONG), owned=True) is None


def test_an_owner_may_be_late_for_its_first_request() -> None:
    found = ends({}, range(LONG), owned=True)
    assert found is not None
    assert abs(found - OWNER_START_S - LEASE_S - PATIENCE_S) <= 1


def test_the_time_in_which_the_master_was_stopped_does_not_count() -> None:
    wish = Wish(LEASE_S)
    wish.note(e.OwnerSeen())
    assert not wish.overdue(0.0, stuck=True, owned=True)
    wish.note(STOP)
    assert not wish.overdue(1000.0, stuck=True, owned=True)
    for second in range(1001, 1100):
        wish.overdue(float(second) - 0.5, stuck=True, owned=True)
        if wish.overdue(float(second), stuck=True, owned=True):
            break
    assert second - 1000 - PATIENCE_S >= -2
