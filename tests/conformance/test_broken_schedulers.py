"""The kit finds what is wrong with a placement strategy, and says no more than that."""

from __future__ import annotations

import pytest
from tests.conformance.broken_schedulers import BROKEN, Slow
from tests.conformance.harness import Findings, found_in, own_tests

from rolemesh import Scheduler
from rolemesh.plugins import manager
from rolemesh_testing import SchedulerConformance

ELSEWHERE = "test_another_process_has_the_same_answer"
LARGE = "test_a_thousand_nodes_are_planned_in_time"
WRONG = {broken: expected for broken, expected in BROKEN.items() if broken is not Slow}


@pytest.fixture(scope="module")
def findings() -> Findings:
    return found_in(SchedulerConformance, WRONG, examples=8, simplify=False)


@pytest.mark.parametrize("broken", WRONG, ids=lambda cls: cls.__name__)
def test_the_kit_finds_each_mistake_of_a_strategy(broken: type[Scheduler], findings: Findings) -> None:
    assert findings[broken].keys() == BROKEN[broken], findings[broken]


def test_a_strategy_that_is_too_slow_for_large_jobs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LIMITS_S", {"place": 1.0, "replace": 1.0})
    found = found_in(SchedulerConformance, {Slow: {LARGE}})
    assert "has not returned from its hook 'place' within 1 s" in found[Slow][LARGE]


@pytest.mark.soak
def test_nothing_else_is_found() -> None:
    found = found_in(SchedulerConformance, WRONG, all_tests=True, but={ELSEWHERE, LARGE}, examples=8, simplify=False)
    assert {broken: failed.keys() for broken, failed in found.items()} == WRONG


def test_each_standard_test_has_a_broken_strategy() -> None:
    assert set().union(*BROKEN.values()) == own_tests(SchedulerConformance)
