"""The phases of a rank, which lie within each other: what the page shows, and whose time is counted."""

from __future__ import annotations

import pytest

from rolemesh_durable.extensions.phases import ADDED
from rolemesh_durable.protocol.rank.page import (
    COMPUTING,
    EDGE,
    FIELDS,
    PHASE,
    SAVING,
    SINCE_NS,
    WAITING,
    AddedPhase,
    add_phase,
)
from rolemesh_durable.protocol.rank.phases import Phases


class Counted(Phases):
    """Phases on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0
        self.fields = [0] * FIELDS
        self.own: list[tuple[int, int, int]] = []
        super().__init__(self.fields, lambda: self.now)

    def spent(self, phase: int, edge: int, began: int, ended: int, own: int) -> None:
        self.own.append((phase, ended - began, own))

    def shows(self) -> tuple[int, int, int]:
        return self.fields[PHASE], self.fields[EDGE], self.fields[SINCE_NS]


def test_the_time_of_a_phase_excludes_that_of_phases_within_it_and_the_page_goes_on_with_the_outer_one() -> None:
    phases = Counted()
    phases.at(COMPUTING)
    phases.now = 10
    outer = phases.enter(WAITING, 3)
    for begin in (20, 40):
        phases.now = begin
        with phases.during(SAVING):
            assert phases.shows() == (SAVING, -1, begin)
            phases.now = begin + 5
        assert phases.shows() == (WAITING, 3, 10), "the wait goes on, with the begin that it had"
    phases.uncounted(7)
    phases.now = 100
    phases.leave(outer)
    assert phases.shows() == (COMPUTING, -1, 100), "no phase goes on: the operator computes again from now on"
    assert phases.own == [(SAVING, 5, 5), (SAVING, 5, 5), (WAITING, 90, 90 - 5 - 5 - 7)]
    with phases.during(WAITING):
        phases.now = 101
    assert phases.own[-1] == (WAITING, 1, 1), "the phases before count for none after them"


def test_two_extensions_cannot_add_phases_with_one_number() -> None:
    taken = next(iter(ADDED.values()))
    assert add_phase(taken) == taken.number
    with pytest.raises(ValueError, match=rf"phase {taken.number} is '{taken.name}' already, not 'mine'"):
        add_phase(AddedPhase(taken.number, "mine", taken.told))
