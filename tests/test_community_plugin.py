"""examples/community-plugin: three plugins that nobody here knows of, from their wheel, beside the kernel's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.installed import ROOT, Dist, Installed, build_wheel, make_environment

pytestmark = [pytest.mark.slow, pytest.mark.soak]

EXAMPLE = ROOT / "examples" / "community-plugin"
KILLS = ("--backend", "local", "--nodes", "3x(cpu=2)", "--chaos", "kills=2,seed=1,targets=rank", "--chaos-compare")


@pytest.fixture(scope="module")
def environment(dist: Dist, authors_environment: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheels of the kernel, of the example, and of the level `job`, and with pytest."""
    folder = tmp_path_factory.mktemp("community")
    wheels = [dist.wheel("rolemesh"), dist.wheel("rolemesh-failover"), build_wheel(EXAMPLE, folder)]
    return make_environment(folder / "venv", wheels, base=authors_environment)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example without its sources, which only the environment has."""
    for name in ("flow.py", "job.yaml", "roles.py", "pyproject.toml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    shutil.copytree(EXAMPLE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_kernel_alone_knows_none_of_the_three(kernel_installed: Installed, folder: Path) -> None:
    done = kernel_installed.run("rolemesh", "validate", "job.yaml", cwd=folder)
    assert done.returncode == 2
    for what in ("workload 'replay-buffer'", "scheduler 'spread'", "failover level 'quarantine'"):
        assert f"there is no {what}" in done.stderr


def test_the_list_shows_where_each_comes_from(environment: Installed, folder: Path) -> None:
    done = environment.run("rolemesh", "plugins", "list", cwd=folder)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["workloads", "replay-buffer", "rolemesh-fieldkit", "0.3.0", "available"] in rows
    assert ["schedulers", "spread", "rolemesh-fieldkit", "0.3.0", "available"] in rows
    assert ["failover", "quarantine", "rolemesh-fieldkit", "0.3.0", "available"] in rows
    assert ["workloads", "function", "rolemesh-function"] in [row[:3] for row in rows]
    assert ["failover", "job", "rolemesh-failover"] in [row[:3] for row in rows]


def test_the_job_goes_on_when_its_ranks_are_killed_and_leaves_the_node_where_they_die(
    environment: Installed, folder: Path
) -> None:
    done = environment.run("rolemesh", "run", "job.yaml", *KILLS, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended exactly as the undisturbed one" in done.stdout + done.stderr
    run = folder / "runs" / "community-plugin"
    result = json.loads((run / "result.json").read_text())
    assert [(r["level"], r["outcome"]) for r in result["recoveries"]] == [("quarantine", "recovered")] * 2
    first, second = planned(run)
    assert (first["avoid"], len(first["restart"])) == ([], 1)
    assert (second["avoid"], sorted(second["restart"])) == (["node-0"], [["replay", 0], ["simulator", 0]])
    assert second["reason"] == "2 strikes on node-0: its ranks move to other nodes"
    (moved,) = events(run, "replanned")
    assert [place["node"] for place in moved["places"]] == ["node-2"]


def test_the_strategy_gives_each_rank_of_the_buffer_a_node(environment: Installed, folder: Path) -> None:
    done = environment.run("rolemesh", "plan", "job.yaml", "--nodes", "3x(cpu=2)", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    ranks = [rank for rank in json.loads(done.stdout)["ranks"] if rank["role"] == "replay"]
    assert [(rank["node"], rank["rule"]) for rank in ranks] == [
        ("node-0", "spread: the first of its role there"),
        ("node-1", "spread: the first of its role there"),
    ]


def test_its_own_tests_pass_with_the_conformance_kit_of_the_wheel(environment: Installed, folder: Path) -> None:
    done = environment.run("python", "-m", "pytest", "-q", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TestReplayBuffer (replay-buffer)" in done.stdout


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the data of the journal's events of a kind, in order."""
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line["data"] for line in lines if line["kind"] == kind]


def planned(run: Path) -> list[dict[str, Any]]:
    """The plans of all recoveries."""
    return [data["plan"] for data in events(run, "recovery_planned")]
