"""``rolemesh plugins check``: which class it takes, what it prints, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rolemesh.cli import main
from rolemesh.kinds import kinds

WORKLOAD = '''
"""A workload of one operator."""

from typing import Any

from rolemesh import Batch, Broadcast, Workload, operator


class Tiny(Workload):
    """Gives back what it gets."""

    deterministic = True

    @operator(rows=Broadcast(), returns=Broadcast())
    def same(self, rows: Batch) -> Batch:
        """The rows."""
        return rows
'''
CONFORMANCE = """
from rolemesh import Batch
from rolemesh_testing import WorkloadConformance, override


class TinyConformance(WorkloadConformance):
    plugin = "tiny"
    world_sizes = (1,)
    steps = 1

    def step(self, role, step):
        role.same(Batch({"n": [1]}))

    @override("there is nothing to say of it")
    def test_it_says_what_it_is(self):
        pass
"""
ENTRY_POINTS = "[rolemesh.workloads]\ntiny = tiny:Tiny\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, in which distributions can be installed by hand."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def install(site: Path, entry_points: str = ENTRY_POINTS, requires: str = "rolemesh<0.2,>=0.1") -> None:
    (site / "tiny.py").write_text(WORKLOAD)
    (site / "tiny_conformance.py").write_text(CONFORMANCE)
    info = site / "tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\nRequires-Dist: {requires}\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_the_class_that_the_distribution_names_is_run(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, ENTRY_POINTS + "[rolemesh.conformance]\ntiny = tiny_conformance:TinyConformance\n")
    assert main(["plugins", "check", "tiny"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("✔ workload tiny  (tiny 1.0)\n  fits rolemesh<0.2,>=0.1; this is rolemesh ")
    assert "1 overridden" in printed
    assert "overridden  test_it_says_what_it_is\n              there is nothing to say of it\n" in printed


def test_without_a_class_what_needs_operators_is_skipped_and_a_failure_ends_with_1(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, requires="rolemesh")
    assert main(["plugins", "check", "tiny:tiny", "--json"]) == 1
    [certificate] = json.loads(capsys.readouterr().out)
    assert (certificate["passed"], certificate["fits"], certificate["distribution"]) == (False, True, "tiny")
    tests = {test["test"]: test for test in certificate["tests"]}
    assert "has no upper bound" in tests["test_its_distribution_says_which_kernels_it_fits"]["message"]
    assert "no step()" in tests["test_every_operator_is_called"]["message"]
    assert certificate["bare"]
    assert [name for name, test in tests.items() if test["outcome"] == "failed"] == [
        "test_its_distribution_says_which_kernels_it_fits"
    ]


@pytest.mark.more
def test_the_headline_counts_the_tests_that_did_not_run(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site)
    assert main(["plugins", "check", "tiny"]) == 0
    printed = capsys.readouterr().out
    head = printed.splitlines()[0]
    assert printed.count("the test class has no step()") == 1, "one reason is said once"
    assert re.fullmatch(
        r"✔ workload tiny  \(tiny 1.0\): \d+ tests need its conformance class, and have not been run", head
    )


def test_a_kernel_that_it_does_not_fit_is_said(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, requires="rolemesh<0.1")
    assert main(["plugins", "check", "tiny"]) == 1
    assert ", which it does not fit" in capsys.readouterr().out


@pytest.mark.more
def test_tests_that_run_in_several_processes_are_counted_once(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-n 2"\n')
    (tmp_path / "test_tiny.py").write_text(CONFORMANCE.replace("class Tiny", "class TestTiny"))
    assert main(["plugins", "check", str(tmp_path), "--json"]) == 0, capsys.readouterr()
    [certificate] = json.loads(capsys.readouterr().out)
    tests = [test["test"] for test in certificate["tests"]]
    assert len(tests) == len(set(tests))
    assert {"test_it_says_what_it_is", "test_every_operator_is_called"} <= set(tests)


HANGING = """
import os
import time

from rolemesh import Observer, hookimpl
from rolemesh_testing import ObserverConformance


class Watcher(Observer):
    @hookimpl
    def job_started(self, run):
        time.sleep(1000)


class TestWatcher(ObserverConformance):
    plugin = Watcher
    timeout_s = 1.0
"""


def test_a_plugin_that_hangs_is_not_asked_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_watcher.py").write_text(HANGING)
    assert main(["plugins", "check", str(tmp_path), "--json"]) == 1
    [certificate] = json.loads(capsys.readouterr().out)
    messages = [test["message"] for test in certificate["tests"] if test["outcome"] == "failed"]
    # On a busy machine an import may take longer than timeout_s, too.
    assert (
        len([message for message in messages if re.search(r"Timeout \(>3.0s\)|: import .* has not ended", message)])
        == 3
    )
    assert any("Timeout (>3.0s)" in message for message in messages)
    assert len([message for message in messages if "not run, since these have not ended: test_" in message]) > 10


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import time; time.sleep(1000)", "import tiny has not ended within 1 s"),
        ("import os; os._exit(3)", "import tiny ends the process, with 3"),
    ],
)
def test_a_plugin_that_cannot_be_imported_does_not_take_the_check_along(
    tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    install(site)
    (site / "tiny.py").write_text(line)
    text = CONFORMANCE.replace("class Tiny", "class TestTiny").replace("    steps = 1\n", "    timeout_s = 1.0\n")
    (tmp_path / "test_tiny.py").write_text(text)
    assert main(["plugins", "check", str(tmp_path), "--json"]) == 1
    [certificate] = json.loads(capsys.readouterr().out)
    tests = {test["test"]: test["message"] for test in certificate["tests"] if test["outcome"] == "failed"}
    assert tests.keys() == {"test_the_kernel_finds_it_by_its_name"}
    assert said in tests["test_the_kernel_finds_it_by_its_name"]


def test_a_folder_without_a_class_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    assert main(["plugins", "check", str(tmp_path)]) == 2
    assert "there is no conformance class in its tests" in capsys.readouterr().err


def test_a_test_that_is_replaced_without_a_reason_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFORMANCE.replace('    @override("there is nothing to say of it")\n', "").replace(
        "class Tiny", "class TestTiny"
    )
    (tmp_path / "test_tiny.py").write_text(text)
    assert main(["plugins", "check", str(tmp_path / "test_tiny.py")]) == 2
    said = capsys.readouterr().err
    assert "the conformance tests could not be run" in said
    assert "replaces the standard test of PluginConformance without a reason" in said


JUDGES = '''
"""A kind of plugins, and one of them."""

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

KIND = Kind("judges", "judge", "tiny_judges:Judge", ("rank",))


class Judge(Plugin):
    """Base of judges."""

    def judge(self, text: str) -> float:
        """How good a text is."""
        raise NotImplementedError


class Length(Judge):
    """Long texts are good."""

    def judge(self, text: str) -> float:
        """The number of letters."""
        return float(len(text))
'''


def test_one_name_is_checked_in_every_kind_and_a_kind_by_its_own_name(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judges = "[rolemesh.kinds]\njudges = tiny_judges:KIND\n[rolemesh.judges]\ntiny = tiny_judges:Length\n"
    install(site, ENTRY_POINTS + judges + "[rolemesh.conformance]\nworkloads.tiny = tiny_conformance:TinyConformance\n")
    (site / "tiny_judges.py").write_text(JUDGES)
    kinds.cache_clear()
    try:
        assert main(["plugins", "check", "tiny", "--json"]) == 0
        found = {one["kind"]: one for one in json.loads(capsys.readouterr().out)}
        assert {kind: (one["passed"], one["bare"]) for kind, one in found.items()} == {
            "workloads": (True, False),
            "judges": (True, True),
        }
        assert main(["plugins", "check", "judges"]) == 0
        printed = capsys.readouterr().out
    finally:
        kinds.cache_clear()
    assert printed.startswith("✔ kind judges  (tiny 1.0)")
    assert "it names no conformance class" in printed


def test_a_class_of_a_jobs_own_is_checked_by_its_file_and_its_kind_is_that_of_its_base(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "    def decide(self, load):\n        return 3\n"
    code = f"from rolemesh_durable.scalers import Scaler\n\n\nclass Mine(Scaler):\n{method}"
    (tmp_path / "mine.py").write_text(code)
    assert main(["plugins", "check", f"{tmp_path / 'mine.py'}:Mine", "--json"]) == 1
    [certificate] = json.loads(capsys.readouterr().out)
    assert (certificate["kind"], certificate["name"], certificate["bare"]) == ("scalers", "Mine", True)
    failed = {test["test"] for test in certificate["tests"] if test["outcome"] == "failed"}
    assert {"test_it_says_what_it_is", "test_it_answers_every_load"} <= failed
    assert "test_importing_it_is_light" not in failed
    (tmp_path / "none.py").write_text("class Mine:\n    pass\n")
    assert main(["plugins", "check", f"{tmp_path / 'none.py'}:Mine"]) == 2
    assert "is a plugin of no kind" in capsys.readouterr().err
    assert main(["plugins", "check", "nowhere.py:Mine"]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["no-such-plugin", "scaler"])
def test_an_unknown_name_is_an_error_with_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "check", name]) == 2
    assert f"there is no plugin {name!r}" in capsys.readouterr().err
    assert main(["plugins", "check", name, "--kind", "kinds"]) == 2
    told = capsys.readouterr().err
    assert f"no distribution declares a kind {name!r}" in told
    assert name != "scaler" or "did you mean 'scalers'?" in told
