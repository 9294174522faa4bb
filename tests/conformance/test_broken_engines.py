"""The kit finds what is wrong with an engine, and says no more."""

from __future__ import annotations

import pytest
from tests.conformance.broken_engines import BROKEN, Sound
from tests.conformance.harness import found_in, own_tests

from rolemesh_testing import EngineConformance, leftovers


def test_the_kit_finds_each_mistake_of_an_engine_and_none_in_a_sound_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GONE_S", 0.5)
    found = found_in(EngineConformance, {**BROKEN, Sound: own_tests(EngineConformance)}, timeout_s=5.0)
    assert {engine: failed.keys() for engine, failed in found.items()} == {**BROKEN, Sound: set()}, found


def test_each_standard_test_of_engines_has_a_broken_plugin() -> None:
    assert set().union(*BROKEN.values()) == own_tests(EngineConformance)
