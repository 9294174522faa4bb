"""The kit finds what is wrong with an environment and with a harness, and says no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.conformance import broken_environments, broken_harnesses
from tests.conformance.broken_environments import Mail, MailAgain
from tests.conformance.harness import found_in, outcomes, own_tests

from rolemesh_agents import Start, Task, ToolCall
from rolemesh_testing import EnvironmentConformance, HarnessConformance, leftovers

ONCE = "test_an_action_that_is_not_repeatable_is_done_once"


@pytest.mark.soak
def test_the_kit_finds_each_mistake_of_an_environment_and_none_in_a_sound_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GONE_S", 0.5)
    of, kit = broken_environments, EnvironmentConformance
    found = found_in(kit, {**of.BROKEN, of.Sound: own_tests(kit)}, sampled=5, turns=3)
    assert {plugin: failed.keys() for plugin, failed in found.items()} == {**of.BROKEN, of.Sound: set()}, found


def test_each_standard_test_of_environments_has_a_broken_plugin() -> None:
    assert set().union(*broken_environments.BROKEN.values()) | {ONCE} == own_tests(EnvironmentConformance)


def test_the_kit_finds_each_mistake_of_a_harness_and_none_in_a_sound_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GONE_S", 0.5)
    of, kit = broken_harnesses, HarnessConformance
    found = found_in(kit, {**of.BROKEN, of.Sound: own_tests(kit)})
    assert {plugin: failed.keys() for plugin, failed in found.items()} == {**of.BROKEN, of.Sound: set()}, found


def test_each_standard_test_of_harnesses_has_a_broken_plugin() -> None:
    assert set().union(*broken_harnesses.BROKEN.values()) == own_tests(HarnessConformance)


class Letters(EnvironmentConformance):
    """Calls a tool that is not repeatable."""

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        return (ToolCall("send", {"text": "hello"}), ToolCall("add", {"number": 1}), "done")[len(answers)]

    def effects(self, base: Path) -> int:
        box = base / "box"
        return len(box.read_text().splitlines()) if box.exists() else 0


def test_the_kit_finds_an_effect_that_is_repeated() -> None:
    classes = {f"Test{cls.__name__}": type(cls.__name__, (Letters,), {"plugin": cls}) for cls in (Mail, MailAgain)}
    found = outcomes(classes, "-k", ONCE)
    assert {cls: [*failed] for cls, failed in found.failed.items()} == {"TestMailAgain": [ONCE]}, found.output
