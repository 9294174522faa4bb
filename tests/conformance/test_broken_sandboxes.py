"""The kit finds what is wrong with a sandbox, and says no more."""

from __future__ import annotations

import pytest
from tests.conformance.broken_sandboxes import BROKEN, Sound
from tests.conformance.harness import found_in, own_tests

from rolemesh_testing import SandboxConformance
from rolemesh_testing.sandboxes import conformance

REMOVED = "test_the_folder_can_be_removed_whatever_commands_made_of_it"
"""A broken plugin would leave folders behind that pytest cannot remove either."""


@pytest.mark.soak
@pytest.mark.slow
def test_the_kit_finds_each_mistake_of_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "WAIT_S", 5.0)
    found = found_in(SandboxConformance, {**BROKEN, Sound: {"test_a_command_works_in_the_folder"}})
    assert {plugin: failed.keys() for plugin, failed in found.items()} == {**BROKEN, Sound: set()}, found


def test_each_standard_test_of_sandboxes_has_a_broken_plugin() -> None:
    assert set().union(*BROKEN.values()) | {REMOVED} == own_tests(SandboxConformance)
