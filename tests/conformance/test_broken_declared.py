"""The kit finds what is wrong with a source, a store, a scaler, a check, a command, an examination and a kind, and says
no more.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance import (
    broken_checks,
    broken_commands,
    broken_examinations,
    broken_extensions,
    broken_kinds,
    broken_scalers,
    broken_sources,
    broken_stores,
)
from tests.conformance.harness import found_in, outcomes, own_tests

from rolemesh_testing import (
    CheckConformance,
    CommandConformance,
    ExaminationConformance,
    ExtensionConformance,
    KindConformance,
    ScalerConformance,
    SourceConformance,
    StoreConformance,
)
from rolemesh_testing.examinations import conformance as examinations
from rolemesh_testing.scalers import conformance as scalers
from rolemesh_testing.stores import conformance as stores

KITS: dict[Any, Any] = {
    SourceConformance: broken_sources,
    StoreConformance: broken_stores,
    ScalerConformance: broken_scalers,
    CheckConformance: broken_checks,
    CommandConformance: broken_commands,
    ExaminationConformance: broken_examinations,
    ExtensionConformance: broken_extensions,
}
SETTINGS: dict[Any, dict[str, Any]] = {
    ScalerConformance: {"examples": 40, "simplify": False},
    SourceConformance: broken_sources.SETTINGS,
}


SLOW = (ScalerConformance, CheckConformance, StoreConformance)
"""Classes that take more than ten seconds. They run in the soak."""


@pytest.mark.parametrize(
    "kit", [pytest.param(kit, marks=pytest.mark.soak) if kit in SLOW else kit for kit in KITS], ids=lambda kit: kit.kind
)
def test_the_kit_finds_each_mistake_and_none_in_a_sound_plugin(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalers, "LATE_S", 1.5)
    monkeypatch.setattr(examinations, "LIMIT_S", 1.0)
    monkeypatch.setattr(stores, "WAIT_S", 3.0)
    of = KITS[kit]
    found = found_in(kit, {**of.BROKEN, of.Sound: own_tests(kit)}, **SETTINGS.get(kit, {}))
    assert {plugin: failed.keys() for plugin, failed in found.items()} == {**of.BROKEN, of.Sound: set()}, found


@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.kind)
def test_each_standard_test_has_a_broken_plugin(kit: Any) -> None:
    named = {"test_its_name_fits_its_class"} if kit is CommandConformance else set()
    assert set().union(*KITS[kit].BROKEN.values()) | named == own_tests(kit)


def test_options_of_run_that_are_installed_as_a_verb_are_found() -> None:
    renamed = type("Renamed", (CommandConformance,), broken_commands.RENAMED)
    sound = type("Sound", (CommandConformance,), {"plugin": broken_commands.Quiet})
    wanted = {"test_its_name_fits_its_class"}
    found = outcomes({"TestIt": renamed, "TestQuiet": sound}, chosen={"TestIt": wanted, "TestQuiet": own_tests(sound)})
    assert {cls: failed.keys() for cls, failed in found.failed.items()} == {"TestIt": wanted}, found.output
    assert "'quiet' is the name of a Command, and Quiet a RunOption" in found.failed["TestIt"][wanted.pop()]


def test_the_kit_finds_each_mistake_of_a_kind_and_none_in_a_sound_one() -> None:
    named = [(test, members) for test, broken in broken_kinds.BROKEN.items() for members in broken]
    classes = {f"Test{at}": type(f"Test{at}", (KindConformance,), members) for at, (_, members) in enumerate(named)}
    classes["TestSound"] = type("TestSound", (KindConformance,), {"plugin": broken_kinds.SOUND})
    chosen = {f"Test{at}": {test} for at, (test, _) in enumerate(named)} | {"TestSound": own_tests(KindConformance)}
    found = outcomes(classes, chosen=chosen)
    assert {cls: {*failed} for cls, failed in found.failed.items()} == {
        f"Test{at}": {test} for at, (test, _) in enumerate(named)
    }, found.output
    assert broken_kinds.BROKEN.keys() == own_tests(KindConformance)
