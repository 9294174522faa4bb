"""The verb lists runs by size, for people and for programs."""

import json
from pathlib import Path

import pytest
from rolemesh.cli import main
from rolemesh_testing import CommandConformance


class TestConformance(CommandConformance):
    """The tests that every command must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"no_such_option": 1},)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs, of one and of two MB."""
    for name, size in (("small", 1), ("large", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(size * 1_000_000))
    return tmp_path


def test_the_largest_run_comes_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["{{ cookiecutter.name }}", "--runs-dir", str(runs)]) == 0
    assert capsys.readouterr().out == "       2.0 MB  large\n       1.0 MB  small\n"


def test_programs_get_json_and_small_runs_can_be_left_out(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--runs-dir", str(runs), "--least-mb", "1.5", "--json"]
    assert main(["{{ cookiecutter.name }}", *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"large": 2.0}


def test_a_folder_without_runs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["{{ cookiecutter.name }}", "--runs-dir", str(tmp_path / "nowhere")]) == 0
    assert capsys.readouterr().out.startswith("no runs in ")
