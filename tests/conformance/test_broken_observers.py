"""The kit finds what is wrong with an observer, and says no more than that."""

from __future__ import annotations

import pytest
from tests.conformance.broken_observers import BROKEN, ELSEWHERE, Sound
from tests.conformance.harness import Findings, found_in, own_tests

from rolemesh import Observer
from rolemesh_testing import ObserverConformance


@pytest.fixture(scope="module")
def findings() -> Findings:
    everything = own_tests(ObserverConformance)
    return found_in(ObserverConformance, {**BROKEN, Sound: everything}, examples=40, simplify=False)


@pytest.mark.soak
@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_the_kit_finds_each_mistake_of_an_observer(broken: type[Observer], findings: Findings) -> None:
    assert findings[broken].keys() == BROKEN[broken], findings[broken]


@pytest.mark.soak
def test_nothing_is_found_in_a_sound_observer(findings: Findings) -> None:
    assert not findings[Sound]


@pytest.mark.soak
def test_nothing_else_is_found() -> None:
    found = found_in(ObserverConformance, BROKEN, all_tests=True, but=ELSEWHERE, examples=40, simplify=False)
    assert {broken: failed.keys() for broken, failed in found.items()} == BROKEN


@pytest.mark.soak
def test_each_standard_test_has_a_broken_observer() -> None:
    assert set().union(*BROKEN.values()) == own_tests(ObserverConformance)
