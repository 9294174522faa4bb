"""Every template as an author gets it: made by the kernel's wheel, installed, tested, checked, and run in a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.fresh import Fresh, build_wheel

from rolemesh import cli, testing
from rolemesh.cli.new import KINDS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """An environment with the kernel's wheel, as ``pip install 'rolemesh[new,test]'`` makes it, and two linters."""
    folder = tmp_path_factory.mktemp("fresh")
    environment = Fresh(folder / "venv")
    environment.install_wheel(build_wheel(folder / "dist"), "new", "test")
    environment.link("mypy", "ruff")
    return environment


@pytest.fixture
def made(kind: str, fresh: Fresh, tmp_path: Path) -> Path:
    """The repository of a new plugin, which is installed."""
    told = json.loads(fresh.run("rolemesh", "new", kind, f"my-{kind}", "--json", cwd=tmp_path).stdout)
    repository = tmp_path / str(told["folder"])
    fresh.install(f"{repository}[test]")
    if not has_kit(kind):
        (repository / "tests" / "test_conformance.py").unlink()
    return repository


def has_kit(kind: str) -> bool:
    """Whether the conformance kit has the class for plugins of this kind."""
    return hasattr(testing, f"{kind.title()}Conformance")


def result(repository: Path, name: str) -> dict[str, object]:
    """What the job has left."""
    told: dict[str, object] = json.loads((repository / "runs" / name / "result.json").read_text())
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_and_linters_and_serves_a_job(kind: str, made: Path, fresh: Fresh) -> None:
    fresh.run("ruff", "check", ".", cwd=made)
    fresh.run("ruff", "format", "--check", ".", cwd=made)
    fresh.run("python", "-m", "mypy", "--cache-dir", fresh.folder / "mypy", cwd=made)
    fresh.run("python", "-m", "pytest", cwd=made)
    if has_kit(kind):
        fresh.run("rolemesh", "plugins", "check", ".", cwd=made)
    fresh.run("rolemesh", "run", "job.yaml", "--backend", "local", cwd=made)
    done = result(made, f"my-{kind}")
    assert done["status"] == "done"
    assert f"my-{kind}" in str(done["plugins"])


@pytest.mark.parametrize("kind", ["failover"])
def test_a_new_failover_level_brings_killed_ranks_back(kind: str, made: Path, fresh: Fresh) -> None:
    rehearsal = ("--chaos", "kills=3,seed=1,targets=rank", "--chaos-compare")
    fresh.run("rolemesh", "run", "job.yaml", "--backend", "local", *rehearsal, cwd=made)
    assert "'level': 'my-failover'" in str(result(made, "my-failover")["recoveries"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_makes_what_the_checkout_makes(
    kind: str, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ("--author", "Ada", "--email", "ada@example.com")
    fresh.run("rolemesh", "new", kind, "x", "--into", "wheel", *answers, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", kind, "x", "--into", "checkout", *answers]) == 0
    assert contents(tmp_path / "wheel") == contents(tmp_path / "checkout")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
