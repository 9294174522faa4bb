"""The template in ``cookiecutter/`` works with cookiecutter alone, and fits the kernel."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from rolemesh import cli
from rolemesh_new.command import KINDS

ROOT = Path(__file__).resolve().parents[4]
OFTEN = ("workload", "source", "kind", "observer")
"""The kinds whose templates have files of their own, and one without."""


def pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_a_new_plugin_is_built_like_the_kernel_and_fits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "workload", "x", "--json"]) == 0
    made = pyproject(tmp_path / "rolemesh-x")
    assert made["build-system"] == pyproject(ROOT)["build-system"]
    [kernel] = [each for line in made["project"]["dependencies"] if (each := Requirement(line)).name == "rolemesh"]
    assert kernel.specifier.contains(version("rolemesh"))
    assert not kernel.specifier.contains("0.2.0")


def plain(folder: Path, *answers: str) -> subprocess.CompletedProcess[str]:
    """Cookiecutter as a person calls it, which keeps to `folder` with all that it writes."""
    config = folder / "config.yaml"
    config.write_text(f"cookiecutters_dir: {folder}/clones\nreplay_dir: {folder}/replay\n")
    where = ["--directory", "cookiecutter", "--output-dir", str(folder / "plain")]
    command = [sys.executable, "-m", "cookiecutter", str(ROOT), *where, "--no-input", "--config-file", str(config)]
    return subprocess.run(
        [*command, f"kind={answers[0]}", *answers[1:]],
        env={"PYTHONPATH": ":".join(sys.path), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", [k if k in OFTEN else pytest.param(k, marks=pytest.mark.soak) for k in KINDS])
def test_cookiecutter_alone_makes_the_same_as_rolemesh_new(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {"author": "Ada", "email": "ada@example.com", "description": "Does much"}
    done = plain(tmp_path, kind, "name=my-plugin", *(f"{each}={value}" for each, value in answers.items()))
    assert done.returncode == 0, done.stderr
    options = [word for each, value in answers.items() for word in (f"--{each}", value)]
    assert cli.main(["new", kind, "my-plugin", "--into", "new", *options]) == 0
    assert contents(tmp_path / "plain") == contents(tmp_path / "new")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_cookiecutter_alone_refuses_names_too_and_leaves_nothing(tmp_path: Path) -> None:
    done = plain(tmp_path, "workload", "name=Fsdp")
    assert done.returncode != 0
    assert "error: name: 'Fsdp' is no plugin name" in done.stderr
    assert "  → use lower-case letters" in done.stderr
    assert list((tmp_path / "plain").iterdir()) == []
