"""Every template as an author gets it: made by the kernel's wheel, installed, tested, checked, and run in a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.installed import Dist, Installed, make_environment

from rolemesh import cli
from rolemesh.cli.new import KINDS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(dist: Dist, kernel_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment as ``pip install 'rolemesh[new,test]'`` makes it, and two linters."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    also = ["rolemesh[new,test]", "mypy", "ruff"]
    return make_environment(folder, [dist.wheel("rolemesh")], base=kernel_installed, also=also)


def succeeds(fresh: Installed, *command: str, cwd: Path) -> str:
    """What a command of the environment prints; all of it is told if it fails."""
    done = fresh.run(*command, cwd=cwd, timeout=240)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def made(kind: str, fresh: Installed, tmp_path: Path) -> Path:
    """The repository of a new plugin, which is installed."""
    told = json.loads(succeeds(fresh, "rolemesh", "new", kind, f"my-{kind}", "--json", cwd=tmp_path))
    repository = tmp_path / str(told["folder"])
    fresh.install(f"{repository}[test]")
    return repository


def result(repository: Path, name: str) -> dict[str, object]:
    """What the job has left."""
    told: dict[str, object] = json.loads((repository / "runs" / name / "result.json").read_text())
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_and_linters_and_serves_a_job(kind: str, made: Path, fresh: Installed) -> None:
    succeeds(fresh, "ruff", "check", ".", cwd=made)
    succeeds(fresh, "ruff", "format", "--check", ".", cwd=made)
    succeeds(fresh, "python", "-m", "mypy", "--cache-dir", str(fresh.folder / "mypy"), cwd=made)
    succeeds(fresh, "python", "-m", "pytest", cwd=made)
    succeeds(fresh, "rolemesh", "run", "job.yaml", "--backend", "local", cwd=made)
    done = result(made, f"my-{kind}")
    assert done["status"] == "done"
    assert f"my-{kind}" in str(done["plugins"])


@pytest.mark.parametrize("kind", ["workload"])
def test_a_new_plugin_can_be_checked(kind: str, made: Path, fresh: Installed) -> None:
    [certificate] = json.loads(succeeds(fresh, "rolemesh", "plugins", "check", ".", "--json", cwd=made))
    assert (certificate["name"], certificate["passed"], certificate["fits"]) == ("my-workload", True, True)


@pytest.mark.parametrize("kind", ["failover"])
def test_a_new_failover_level_brings_killed_ranks_back(kind: str, made: Path, fresh: Installed) -> None:
    rehearsal = ("--chaos", "kills=3,seed=1,targets=rank", "--chaos-compare")
    succeeds(fresh, "rolemesh", "run", "job.yaml", "--backend", "local", *rehearsal, cwd=made)
    assert "'level': 'my-failover'" in str(result(made, "my-failover")["recoveries"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_makes_what_the_checkout_makes(
    kind: str, fresh: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ("--author", "Ada", "--email", "ada@example.com")
    succeeds(fresh, "rolemesh", "new", kind, "x", "--into", "wheel", *answers, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", kind, "x", "--into", "checkout", "--json", *answers]) == 0
    assert contents(tmp_path / "wheel") == contents(tmp_path / "checkout")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
