"""The kit finds what is wrong with a backend, and says no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance import broken_backends as of
from tests.conformance.harness import outcomes, own_tests

from rolemesh_testing import BackendConformance, leftovers

METADATA = "Metadata-Version: 2.1\nName: broken-backends\nVersion: 1.0\nRequires-Dist: rolemesh>=0.1,<0.2\n"
QUICK = (of.Restless, of.Eager, of.Knowing, of.Stubborn, of.Misnamed)
"""Backends whose mistake shows without a job."""
JOBS = [each for each in of.BROKEN if each not in QUICK]


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with all of them: the engine finds backends by name."""
    info = tmp_path / "broken_backends-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    points = (f"{name(each)} = {of.__name__}:{each.__name__}\n" for each in (of.Sound, *of.BROKEN))
    (info / "entry_points.txt").write_text(f"[rolemesh.backends]\n{''.join(points)}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(leftovers, "GONE_S", 1.0)


def name(backend: type[of.Sound]) -> str:
    return "misnamed" if backend is of.Misnamed else backend.name


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    "backends",
    [QUICK, pytest.param((*{*of.BROKEN} - {*QUICK}, of.Sound), marks=pytest.mark.soak)],
    ids=["quick", "jobs"],
)
def test_the_kit_finds_each_mistake_of_a_backend_and_none_in_a_sound_one(backends: tuple[type[of.Sound], ...]) -> None:
    wanted = {f"Test{each.__name__}": of.BROKEN.get(each, own_tests(BackendConformance)) for each in backends}
    members = {each: {"plugin": name(each), "timeout_s": 20.0} for each in backends}
    classes = {f"Test{each.__name__}": type("It", (BackendConformance,), members[each]) for each in backends}
    found = outcomes(classes, chosen=wanted)
    failed = {cls: {*tests} for cls, tests in found.failed.items()}
    assert failed == {cls: tests for cls, tests in wanted.items() if cls != "TestSound"}, found.output


def test_each_standard_test_of_backends_has_a_broken_plugin() -> None:
    assert set().union(*of.BROKEN.values()) == own_tests(BackendConformance)
