"""`rolemesh doctor` on this machine: every look has a limit, and others add findings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolemesh_doctor.command import judged
from rolemesh_doctor.isolated import Failed, Task, run

NAMES = [
    "python",
    "start-method",
    "torch",
    "ray",
    "shm",
    "limits",
    "fork",
    "namespaces",
    "ports",
    "host",
    "disk",
    "tmp",
]
NAMES += ["clock", "plugins", "installation", "working-dir"]


def doctor(folder: Path, *arguments: str, path: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The command, given from `folder`, with `path` in front of ``sys.path``."""
    environ = os.environ | {"PYTHONPATH": str(path or ""), "RAY_ADDRESS": ""} | environ
    command = [sys.executable, "-P", "-m", "rolemesh.cli", "doctor", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, list[dict[str, Any]]]:
    """Findings by name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["name"], []).append(each)
    return found


def raises() -> None:
    raise OSError("no such device")


RESULTS: dict[str, tuple[Callable[[], Any], Any]] = {
    "value": (lambda: [1, 2], [1, 2]),
    "prints": (lambda: print("noise") or 3, 3),
    "raises": (raises, Failed("OSError: no such device")),
    "exits": (lambda: sys.exit(3), Failed("SystemExit: 3")),
    "dies": (lambda: os.kill(os.getpid(), signal.SIGKILL), Failed("its process died")),
    "hangs": (lambda: time.sleep(60), Failed("it took longer than 0.5 s")),
    "large": (lambda: "x" * 1_000_000, "x" * 1_000_000),
}


def test_a_look_that_hangs_raises_or_dies_is_a_failure_and_the_others_have_their_results(
    capfd: pytest.CaptureFixture[str],
) -> None:
    results = run({name: Task(do, Any, 0.5 if name == "hangs" else 30.0) for name, (do, _) in RESULTS.items()})
    assert results == {name: expected for name, (_, expected) in RESULTS.items()}
    assert capfd.readouterr() == ("", "")


def test_without_another_process_looks_are_done_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert run({"one": Task(lambda: 1, int), "two": Task(raises, int)}) == {
        "one": 1,
        "two": Failed("OSError: no such device"),
    }


def test_an_unreadable_fact_is_a_finding() -> None:
    def breaks(facts: object) -> Any:
        raise KeyError("x")

    for result, why in ((Failed("it took longer than 5 s"), "it took longer than 5 s"), (1, "KeyError: 'x'")):
        [finding] = judged("disk", result, breaks)
        assert (finding.name, finding.status) == ("disk", "warning")
        assert finding.what == f"it could not be looked at: {why}"
        assert finding.remedy


def test_every_finding_has_its_fields_and_those_that_are_not_ok_a_remedy(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json")
    found = findings(done)
    assert list(found) == NAMES
    every = [each for several in found.values() for each in several]
    assert all(list(each) == ["name", "status", "what", "remedy"] for each in every)
    assert all(each["remedy"] for each in every if each["status"] != "ok")
    healthy = not any(each["status"] == "error" for each in every)
    assert (json.loads(done.stdout)["healthy"], done.returncode) == (healthy, 0 if healthy else 1)
    assert done.stderr == ""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The command where much is wrong: leftovers, plugins, a runs folder, a name that is hidden, an address."""
    root = tmp_path_factory.mktemp("troubled")
    (root / "work").mkdir()
    (root / "work/random.py").touch()
    (root / "work/runs").touch()
    (root / "site/rolemesh_fsdp-0.0.1.dist-info").mkdir(parents=True)
    (root / "site/gone-1.0.dist-info").mkdir()
    info = root / "site/strange-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange\nVersion: 1.0\n")
    points = "[rolemesh.doctor]\nlicence = strange_code:Licence\nslow = strange_code:Slow\n"
    (info / "entry_points.txt").write_text(points + "[rolemesh.workloads]\nlost = no_such_module:Lost\n")
    (root / "site/strange_code.py").write_text(
        """
from rolemesh_doctor import Examination, Finding


class Licence(Examination):
    def examine(self):
        print("looking")
        yield Finding("licence", "error", "the simulator has no licence", "simulator-licence fetch")


class Slow(Examination):
    def examine(self):
        raise TimeoutError("the server does not answer")
"""
    )
    return doctor(root / "work", "--json", path=root / "site", RAY_ADDRESS="127.0.0.1:1")


def test_other_distributions_add_findings(troubled: subprocess.CompletedProcess[str]) -> None:
    found = findings(troubled)
    assert [each["remedy"] for each in found["licence"]] == ["simulator-licence fetch"]
    [failed] = found["strange:slow"]
    assert failed["what"] == "it could not be looked at: TimeoutError: the server does not answer"
    assert troubled.returncode == 1


def test_leftovers_broken_plugins_and_hidden_modules_are_found(troubled: subprocess.CompletedProcess[str]) -> None:
    found = findings(troubled)
    left = {each["status"]: each for each in found["installation"]}
    assert "rolemesh_fsdp-0.0.1.dist-info" in left["warning"]["what"]
    assert left["error"]["remedy"].endswith("gone-1.0.dist-info && pip install gone")
    [broken] = found["plugins"]
    assert "No module named 'no_such_module'" in broken["what"]
    assert broken["remedy"] == "pip install --force-reinstall strange"
    [hides] = found["working-dir"]
    assert "random.py hides the module of that name" in hides["what"]


def test_a_runs_folder_that_is_a_file_and_a_ray_that_is_gone_are_found(
    troubled: subprocess.CompletedProcess[str],
) -> None:
    found = findings(troubled)
    assert found["disk"][0]["status"] == "error"
    assert "is no folder" in found["disk"][0]["what"]
    pytest.importorskip("ray")
    assert "RAY_ADDRESS names the Ray at 127.0.0.1:1, which cannot be reached" in found["ray"][-1]["what"]


def test_the_text_ends_with_a_count(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--runs-dir", "/proc/runs")
    lines = done.stdout.splitlines()
    assert any(line.startswith("ERROR    disk") and "/proc/runs cannot be written" in line for line in lines), (
        done.stdout
    )
    assert lines[-1].startswith("1 error")
    assert done.returncode == 1
