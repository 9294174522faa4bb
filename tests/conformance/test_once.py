"""A plugin that cannot be tested is one error. The kit does not blame it for output of other packages."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conformance.counter import Counter
from tests.conformance.harness import outcomes

from rolemesh import Batch, Observer, RankContext, RunInfo, hookimpl
from rolemesh_testing import ObserverConformance, SchedulerConformance, WorkloadConformance
from rolemesh_testing.guard import Guard


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution whose strategies cannot be used: one cannot be imported, the other is for a later kernel."""
    info = tmp_path / "bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\nRequires-Dist: rolemesh<2\n")
    (info / "entry_points.txt").write_text("[rolemesh.schedulers]\nbroken = bad_one:One\nlate = bad_other:Other\n")
    (tmp_path / "bad_one.py").write_text("import no_such_thing\nclass One: ...\n")
    later = "from rolemesh import Scheduler\nclass Other(Scheduler):\n    api_version = 99\n"
    (tmp_path / "bad_other.py").write_text(later)
    monkeypatch.syspath_prepend(tmp_path)


class Unable(Counter):
    """Cannot be set up."""

    def setup(self, ctx: RankContext) -> None:
        raise RuntimeError("no licence")


class Refusing(WorkloadConformance):
    plugin = Unable
    world_sizes = (1,)

    def step(self, role: Any, step: int) -> None:
        role.add(rows=Batch({"number": [1.0]}))


class Absent(Observer):
    """Cannot be made."""

    def __init__(self, options: Any) -> None:
        raise RuntimeError("no licence")

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        pass


@pytest.mark.soak
@pytest.mark.usefixtures("bad")
def test_an_obstacle_to_all_tests_fails_one_test_and_the_others_name_it() -> None:
    classes = {
        "TestBroken": type("Broken", (SchedulerConformance,), {"plugin": "broken"}),
        "TestLate": type("Late", (SchedulerConformance,), {"plugin": "late"}),
        "TestUnknown": type("Unknown", (SchedulerConformance,), {"plugin": "no-such-strategy"}),
        "TestOptions": type("Options", (SchedulerConformance,), {"plugin": "pack", "options": {"no": "such"}}),
        "TestUnable": Refusing,
        "TestAbsent": type("Absent", (ObserverConformance,), {"plugin": Absent}),
    }
    life = {"test_set_up_and_torn_down_twice", "test_every_operator_is_called", "test_inputs_are_not_written_to"}
    every = {name: {test for test in dir(cls) if test.startswith("test_")} for name, cls in classes.items()}
    found = outcomes(classes, "-rs", chosen=every | {"TestUnable": life})
    errors = {name: [*failed.values()] for name, failed in found.failed.items()}
    assert {name: len(texts) for name, texts in errors.items()} == dict.fromkeys(classes, 1), found.output
    for name, part in (
        ("TestBroken", "No module named 'no_such_thing'"),
        ("TestLate", "needs version 99 of the schedulers API"),
        ("TestUnknown", "there is no scheduler 'no-such-strategy'"),
        ("TestOptions", "Extra inputs are not permitted"),
        ("TestUnable", "no licence"),
        ("TestAbsent", "cannot be created: RuntimeError: no licence"),
    ):
        assert part in errors[name][0]
    assert "shows that the plugin cannot be used" in found.output
    assert "shows that its options are not accepted" in found.output
    assert "shows that its ranks cannot be set up (world size 1)" in found.output


def test_the_import_of_another_package_may_write_in_the_temporary_folder_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[str] = []
    run, temporary = tmp_path / "run", Path(tempfile.gettempdir()).resolve()
    guard = Guard((run,), "mine.observer:Mine", wrote)

    def writes(name: str) -> None:
        guard("open", (name, "w", os.O_CREAT))

    monkeypatch.setattr(builtins, "writes", writes, raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    def imported(package: str, path: Path) -> list[str]:
        wrote.clear()
        (tmp_path / f"{package}.py").write_text(f"writes({str(path)!r})\n")
        monkeypatch.delitem(sys.modules, package, raising=False)
        importlib.invalidate_caches()
        importlib.import_module(package)
        return [*wrote]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert imported("another", temporary / "probe") == []
    assert imported("another", Path("/somewhere/probe")) == ["/somewhere/probe"]
    assert imported("mine", temporary / "probe") == [str(temporary / "probe")]
    assert imported("mine", run / "probe") == []
    wrote.clear()
    SimpleNamespace(hook=lambda: writes(str(temporary / "probe"))).hook()
    assert wrote == [str(temporary / "probe")], "the plugin itself writes there"
    wrote.clear()
    exec("writes(path)", {"__name__": "another", "path": str(temporary / "probe")})
    assert wrote == [str(temporary / "probe")], "what `exec` runs is no import"
