"""Every template as an author gets it: made by the wheel, installed, tested, checked, and run in a job.

`plugins/commands/base/tests` has what every test run does: the files of the checkout, without a wheel.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.installed import Installed

from rolemesh import cli
from rolemesh_new.command import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SELECTED = {"kind": "brevity", **dict.fromkeys(("command", "examination", "engine", "store", "backend"), "function")}
"""Plugins that the results of jobs name whose own plugin no job file lists."""


def succeeds(environment: Installed, *command: str, cwd: Path) -> str:
    """Run a command of the environment and return its output. A failure shows all of the output."""
    done = environment.run(*command, cwd=cwd)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def fresh(
    authors_environment: Installed, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Installed, Path]:
    """An environment in which a new plugin of each kind is installed, and the folder of their repositories.

    Of each kind that one of the chosen tests is about.
    """
    folder = tmp_path_factory.mktemp("new")
    found = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    asked = {"failover", *(each.params.get("kind") for each in found if each is not None)}
    kinds = [kind for kind in KINDS if kind in asked]
    for kind in kinds:
        succeeds(authors_environment, "rolemesh", "new", kind, f"my-{kind}", cwd=folder)
    # Built by the setuptools that the lock pins, which has just been installed: builds apart would ask for one each.
    authors_environment.install("--no-build-isolation", *(f"{repository(folder, kind)}[test]" for kind in kinds))
    return authors_environment, folder


def repository(folder: Path, kind: str) -> Path:
    """Return the folder of the new plugin of that kind."""
    return folder / f"rolemesh-my-{kind}"


def result(made: Path, name: str) -> dict[str, object]:
    """Return the job's ``result.json``."""
    told: dict[str, object] = json.loads((made / "runs" / name / "result.json").read_text())
    return told


# Those of a workload pass beside the command itself, in plugins/commands/base/tests; its wheel is certified below.
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_and_linters_and_serves_a_job(kind: str, fresh: tuple[Installed, Path]) -> None:
    environment, made = fresh[0], repository(fresh[1], kind)
    succeeds(environment, "ruff", "check", ".", cwd=made)
    succeeds(environment, "ruff", "format", "--check", ".", cwd=made)
    succeeds(environment, "python", "-m", "mypy", "--cache-dir", str(environment.folder / "mypy"), cwd=made)
    succeeds(environment, "python", "-m", "pytest", cwd=made)
    how = ("--backend", "local") if kind not in ("engine", "backend") else (f"--{kind}", f"my-{kind}")
    succeeds(environment, "rolemesh", "run", "job.yaml", *how, cwd=made)
    done = result(made, f"my-{kind}")
    assert done["status"] == "done"
    assert SELECTED.get(kind, f"my-{kind}") in str(done["plugins"])


@pytest.mark.soak  # by its name below; tests/unit/kernel/cli/test_check.py checks folders
def test_a_new_plugin_can_be_checked(fresh: tuple[Installed, Path]) -> None:
    environment, made = fresh[0], repository(fresh[1], "workload")
    [certificate] = json.loads(succeeds(environment, "rolemesh", "plugins", "check", ".", "--json", cwd=made))
    assert (certificate["name"], certificate["passed"], certificate["fits"]) == ("my-workload", True, True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_is_certified_where_its_wheel_is_installed(kind: str, fresh: tuple[Installed, Path]) -> None:
    name = "my_kind" if kind == "kind" else f"my-{kind}"
    told = succeeds(fresh[0], "rolemesh", "plugins", "check", name, "--json", cwd=fresh[1])
    [certificate] = json.loads(told)
    assert (certificate["passed"], certificate["bare"]) == (True, False)
    outcomes = {test["test"]: test["outcome"] for test in certificate["tests"]}
    if kind == "workload":
        assert outcomes["test_every_operator_is_called"] == outcomes["test_bad_options_are_refused_with_a_remedy"]
        assert outcomes["test_every_operator_is_called"] == "passed"


def test_a_new_failover_level_brings_killed_ranks_back(fresh: tuple[Installed, Path]) -> None:
    environment, made = fresh[0], repository(fresh[1], "failover")
    rehearsal = ("--chaos", "kills=3,seed=1,targets=rank", "--chaos-compare")
    succeeds(environment, "rolemesh", "run", "job.yaml", "--backend", "local", *rehearsal, cwd=made)
    assert "'level': 'my-failover'" in str(result(made, "my-failover")["recoveries"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_makes_the_same_files_as_the_checkout(
    kind: str, authors_environment: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = ("--author", "Ada", "--email", "ada@example.com")
    succeeds(authors_environment, "rolemesh", "new", kind, "x", "--into", "wheel", *answers, cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", kind, "x", "--into", "checkout", "--json", *answers]) == 0
    assert contents(tmp_path / "wheel") == contents(tmp_path / "checkout")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
