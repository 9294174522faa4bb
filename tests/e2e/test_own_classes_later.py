"""Commands that read a run whose classes are the job's own: they find what the job's start found, or name the role."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.harness import Job, nothing_is_left

OWN = """
import numpy as np
from pydantic import BaseModel

from rolemesh import Batch, ImportRef, Observer, Split, Workload, hookimpl, operator


class Rows(Workload):
    @operator(returns=Split())
    def next(self):
        return Batch({"n": np.arange(4) + 4 * self.ctx.step})

    def setup(self, ctx):
        self.ctx = ctx


class Sum(Workload):
    class Options(BaseModel, extra="forbid"):
        scale: ImportRef

    def setup(self, ctx):
        self.scale, self.total = self.options.scale.resolve(), 0

    @operator(rows=Split())
    def add(self, rows):
        self.total += self.scale(int(rows["n"].sum()))

    def snapshot(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = int(state["total"])

    @classmethod
    def export(cls, options, state, folder):
        (folder / "total").write_text(f"{cls.__module__} {state['total']}")


class Watch(Observer):
    side = "driver"

    class Options(BaseModel, extra="forbid"):
        tell: ImportRef

    @hookimpl
    def job_ended(self, result):
        print("watched:", self.options.tell.resolve()(21), result["status"], flush=True)
"""
JOB = """
name: kept
flow: flow.py:kept
steps: 4
roles:
  rows: {use: "own.py:Rows", resources: {cpu: 0.1}}
  first: {use: "own.py:Sum", options: {scale: "scales.py:twice"}, resources: {cpu: 0.1}}
  second: {use: "parts.sums:Sum", options: {scale: "parts.sums:once"}, resources: {cpu: 0.1}}
observers: [{use: "own.py:Watch", options: {tell: "scales.py:twice"}}]
engine: {options: {snapshots: {enabled: true, persist_every: 2}}}
"""
FILES = {
    "own.py": OWN,
    "job.yaml": JOB,
    "scales.py": "def twice(n):\n    return 2 * n\n",
    "parts/__init__.py": "",
    "parts/sums.py": "from .deep import Sum\n\ndef once(n):\n    return n\n",
    "parts/deep.py": OWN.partition("class Watch")[0],
    "flow.py": """
from rolemesh import flow


@flow
def kept(job):
    rows = job.rows.next()
    job.first.add(rows)
    job.second.add(rows)
""",
}
TOTAL = sum(range(16))


class Project(NamedTuple):
    """A folder with a job file, its code, and a run of it that has ended."""

    folder: Path

    def rolemesh(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A command given from the root folder."""
        command = [sys.executable, "-m", "rolemesh.cli", *arguments]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    @property
    def run(self) -> str:
        return str(self.folder / "runs/kept")

    def export(self, out: Path, *role: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.rolemesh("checkpoint", "export", self.run, *role, "-o", str(out), code=code)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("project")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    job = Job(folder, "kept", ("--backend", "local"))
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "watched: 42 done" in done.stdout
    yield Project(folder)
    nothing_is_left(job.ids())


@pytest.fixture
def moved(ended: Project, tmp_path: Path) -> Iterator[Project]:
    """A copy of the project, where the original is not."""
    away = shutil.move(ended.folder, tmp_path / "away")
    yield Project(Path(shutil.copytree(away, tmp_path / "elsewhere")))
    shutil.move(away, ended.folder)


def test_a_class_in_a_file_and_one_in_a_package_are_exported_from_any_folder(ended: Project, tmp_path: Path) -> None:
    ended.export(tmp_path / "first", "--role", "first")
    assert (tmp_path / "first/total").read_text() == f"own {2 * TOTAL}"
    ended.export(tmp_path / "second", "--role", "second")
    assert (tmp_path / "second/total").read_text() == f"parts.deep {TOTAL}"


def test_attach_calls_the_jobs_own_observer_with_its_options(ended: Project) -> None:
    assert "watched: 42 done" in ended.rolemesh("attach", ended.run).stdout


def test_a_project_that_was_moved_is_read_where_it_is(moved: Project, tmp_path: Path) -> None:
    moved.export(tmp_path / "first", "--role", "first")
    assert (tmp_path / "first/total").read_text() == f"own {2 * TOTAL}"
    moved.export(tmp_path / "second", "--role", "second")
    assert "watched: 42 done" in moved.rolemesh("attach", moved.run).stdout


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("own.py", None, "there is no file"),
        ("own.py", OWN.replace("class Sum", "class Add"), "own.py has no 'Sum'"),
        pytest.param("own.py", OWN + "\n\nraise OSError('no file')\n", "OSError: no file", marks=pytest.mark.soak),
        ("scales.py", None, "its options are not valid any more: scale: "),
        pytest.param("scales.py", "def thrice(n):\n    pass\n", "scales.py has no 'twice'", marks=pytest.mark.soak),
    ],
)
def test_code_that_is_not_as_it_was_keeps_only_its_own_role_from_being_exported(
    file: str, text: str | None, said: str, moved: Project, tmp_path: Path
) -> None:
    if text is None:
        (moved.folder / file).unlink()
    else:
        (moved.folder / file).write_text(text)
    refused = moved.export(tmp_path / "first", "--role", "first", code=2)
    assert "job.yaml: roles.first: " in refused.stderr
    assert said in refused.stderr
    assert f"put the files in {moved.folder} back as they were when the job ran" in refused.stderr
    done = moved.export(tmp_path / "second")
    assert (tmp_path / "second/total").exists()
    assert "warning: role first cannot be exported: " in done.stderr


def test_attach_goes_on_without_an_observer_that_is_gone(moved: Project) -> None:
    (moved.folder / "own.py").unlink()
    attached = moved.rolemesh("attach", moved.run)
    assert "warning: " in attached.stderr
    assert "there is no file" in attached.stderr
    assert "kept" in attached.stdout + attached.stderr


def test_a_class_that_has_changed_is_used_as_it_is_now_and_that_is_said(moved: Project, tmp_path: Path) -> None:
    with (moved.folder / "own.py").open("a") as file:
        file.write("# changed\n")
    done = moved.export(tmp_path / "first", "--role", "first")
    assert "warning: own.py:Sum has changed since the job ran; it is used as it is now" in done.stderr


def test_files_that_another_user_may_write_are_not_imported(moved: Project, tmp_path: Path) -> None:
    Path(moved.run).chmod(0o777)
    refused = moved.export(tmp_path / "first", "--role", "first", code=1)
    assert "own.py:Sum, which is code of the job's own, is not imported: other users may write there" in refused.stderr


def test_a_variable_that_is_not_set_concerns_only_its_role(moved: Project, tmp_path: Path) -> None:
    job = Path(moved.run, "job.yaml")
    job.write_text(job.read_text().replace("scales.py:twice", "${SCALES_THAT_ARE_NOT_SET}", 1))
    moved.export(tmp_path / "second", "--role", "second")
    assert "SCALES_THAT_ARE_NOT_SET" in moved.export(tmp_path / "first", "--role", "first", code=2).stderr
