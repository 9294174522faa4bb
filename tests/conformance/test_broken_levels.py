"""The kit finds what is wrong with a failover level, and says no more than that."""

from __future__ import annotations

import pytest
from tests.conformance.broken_levels import BROKEN, Slow
from tests.conformance.harness import Findings, found_in, own_tests

from rolemesh import FailoverLevel
from rolemesh.plugins import manager
from rolemesh_testing import FailoverConformance

LARGE = "test_it_answers_in_time_for_ten_thousand_ranks"
WRONG = {broken: expected for broken, expected in BROKEN.items() if broken is not Slow}


@pytest.fixture(scope="module")
def findings() -> Findings:
    return found_in(FailoverConformance, WRONG, examples=25, simplify=False)


@pytest.mark.parametrize("broken", WRONG, ids=lambda cls: cls.__name__)
def test_the_kit_finds_each_mistake_of_a_level(broken: type[FailoverLevel], findings: Findings) -> None:
    assert findings[broken].keys() == BROKEN[broken], findings[broken]


def test_a_level_that_is_too_slow_for_large_jobs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "LIMITS_S", {"recover": 1.0, "diagnose": 1.0})
    found = found_in(FailoverConformance, {Slow: {LARGE}})
    assert "has not returned from its hook 'recover' within 1 s" in found[Slow][LARGE]


@pytest.mark.soak
def test_nothing_else_is_found() -> None:
    slow = {"test_another_process_has_the_same_answer", LARGE}
    found = found_in(FailoverConformance, WRONG, all_tests=True, but=slow, examples=25, simplify=False)
    assert {broken: failed.keys() for broken, failed in found.items()} == WRONG


def test_each_standard_test_has_a_broken_level() -> None:
    assert set().union(*BROKEN.values()) == own_tests(FailoverConformance)
