"""A run that another user could have written chooses no code that runs here."""

import sys
from pathlib import Path

import pytest

from rolemesh.errors import RolemeshError
from rolemesh.job_file.model import Use
from rolemesh_durable.api.jobs import Run
from rolemesh_jobs.attach import watchers
from rolemesh_jobs.classes import Resolver


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "base" / "run"
    folder.mkdir(parents=True)
    (folder.parent / "spy.py").write_text("raise SystemExit('it was imported')\nSpy = loss = None\n")
    (folder / "job.yaml").write_text("observers: [{use: 'spy.py:Spy'}, {use: prometheus}]\n")
    folder.chmod(0o777)
    return Run(folder)


def test_its_observers_do_not_watch(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = [*sys.path]
    assert [*watchers(run).names] == ["console"]
    assert "its observers do not watch, only the console does: other users may write there" in capsys.readouterr().err
    assert sys.path == path


@pytest.mark.parametrize(
    ("use", "options"), [("spy.py:Spy", {}), ("spy:Spy", {}), ("function", {"target": "spy.py:loss"})]
)
def test_neither_a_class_nor_an_option_of_it_is_imported(run: Run, use: str, options: dict[str, str]) -> None:
    with pytest.raises(RolemeshError, match="which is code of the job's own, is not imported"):
        Resolver(run, str(run.path.parent)).find("workloads", Use(use=use, options=options), "roles.a")
    assert "spy" not in sys.modules
