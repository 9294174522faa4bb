"""`rolemesh clean`: only replaced runs are listed, and only with --yes deleted."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rolemesh.cli import main
from rolemesh_durable.control.resume import moved
from rolemesh_runtime.claim import claim


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three replaced runs of `a`, one of `a-b`, and what rolemesh has not made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLEMESH_RUNS", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("a", "a", "a-b", "a", "a", "a-b"):
        with claim(folder / name):
            (folder / name / "state").write_bytes(bytes(2000))
    (folder / ".earlier" / "mine-20260101-000000").mkdir()
    (folder / ".earlier" / "c-20260101-000000").symlink_to(folder / "a")
    return folder


def left(runs: Path) -> list[str]:
    return sorted(path.name.partition("-2")[0] for path in (runs / ".earlier").iterdir())


def test_without_yes_runs_are_listed_with_their_sizes_and_stay(runs: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["clean"]) == 0
    out = capsys.readouterr().out
    assert out.count("2.0 kB") == 4
    assert "8.0 kB in all; to delete them: rolemesh clean --yes" in out
    assert left(runs) == ["a", "a", "a", "a-b", "c", "mine"]


def test_the_command_that_it_names_deletes_them_and_nothing_else(runs: Path, capsys: pytest.CaptureFixture[str]):
    newest = max(path.name for path in (runs / ".earlier").glob("a-2*"))
    assert main(["clean", "a", "--keep", "1"]) == 0
    command = capsys.readouterr().out.strip().rpartition("to delete them: rolemesh ")[2]
    assert main(shlex.split(command)) == 0
    assert "deleted 2 earlier runs: 4.0 kB" in capsys.readouterr().out
    assert left(runs) == ["a", "a-b", "c", "mine"]
    assert (runs / ".earlier" / newest).is_dir()
    assert (runs / "a" / "state").exists()
    assert main(["clean", "--yes"]) == 0
    assert left(runs) == ["c", "mine"]
    assert main(["clean"]) == 0
    assert "no earlier runs to delete" in capsys.readouterr().out


def test_nothing_is_deleted_while_a_job_lives(runs: Path, capsys: pytest.CaptureFixture[str]):
    with claim(runs / "other"):
        assert main(["clean", "--yes"]) == 2
    assert "rolemesh stop other" in capsys.readouterr().err
    assert left(runs) == ["a", "a", "a", "a-b", "c", "mine"]


def test_the_line_at_the_move_names_the_size_and_the_command(runs: Path, tmp_path: Path):
    (earlier,) = (runs / ".earlier").glob("a-b-*")
    assert moved(earlier, resumed=False).endswith("(2.0 kB; rolemesh clean lists and deletes such runs)")
    other = tmp_path / "my runs"
    runs.rename(other)
    (earlier,) = (other / ".earlier").glob("a-b-*")
    assert f"rolemesh clean --runs-dir '{other}' lists" in moved(earlier, resumed=False)
