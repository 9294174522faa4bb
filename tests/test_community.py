"""examples/community: plugins of a stranger, from their wheel, beside the kernel's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.installed import ROOT, Dist, Installed, build_wheel, make_environment

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "community"
NODES = ("--nodes", "3x(cpu=4)")
KILLS = ("--backend", "local", *NODES, "--chaos", "kills=2,seed=1,targets=rank", "--chaos-compare")
TESTED = {
    ("workloads", "arithmetic"),
    ("workloads", "guesser"),
    ("workloads", "replay-buffer"),
    ("schedulers", "even"),
    ("schedulers", "spread"),
    ("failover", "give-up"),
    ("failover", "quarantine"),
}
PLUGINS = TESTED | {("engines", "preview"), ("backends", "polite"), ("extensions", "resident"), ("commands", "slowest")}


@pytest.fixture(scope="module")
def wheels(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [dist.wheel("rolemesh"), build_wheel(EXAMPLE, tmp_path_factory.mktemp("community"))]


@pytest.fixture(scope="module")
def environment(wheels: list[Path], whole_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The distributions of ``pip install 'rolemesh[local]'``, and the example's wheel."""
    return make_environment(tmp_path_factory.mktemp("user") / "venv", wheels, base=whole_installed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example without its sources, which only the environment has."""
    ignored = shutil.ignore_patterns("src", "__pycache__", "runs")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "community", ignore=ignored))


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """The folder with the job ``hello``."""
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    return Path(shutil.copytree(ROOT / "examples" / "hello", tmp_path / "hello", ignore=ignored))


@pytest.mark.soak
def test_the_kernel_alone_knows_none_of_them(kernel_installed: Installed, folder: Path) -> None:
    done = kernel_installed.run("rolemesh", "validate", "job.yaml", cwd=folder)
    assert done.returncode == 2
    for what in ("workload 'replay-buffer'", "scheduler 'spread'", "failover level 'quarantine'"):
        assert f"there is no {what}" in done.stderr


def test_the_list_shows_where_each_comes_from(environment: Installed, folder: Path) -> None:
    rows = json.loads(environment.run("rolemesh", "plugins", "list", "--json", cwd=folder).stdout)
    theirs = [row for row in rows if row["distribution"] == "rolemesh-fieldkit"]
    assert {(row["kind"], row["name"]) for row in theirs} == PLUGINS
    assert {(row["version"], row["status"]) for row in theirs} == {("0.3.0", "available")}


def test_its_job_runs_with_agents_that_call(environment: Installed, folder: Path) -> None:
    done = environment.run("rolemesh", "run", "job.yaml", "--backend", "local", *NODES, "steps=10", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "runs" / "community" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["share"] == 1.0


@pytest.mark.soak
def test_the_job_goes_on_when_its_ranks_are_killed_and_leaves_the_node_where_they_die(
    environment: Installed, folder: Path
) -> None:
    done = environment.run("rolemesh", "run", "job.yaml", *KILLS, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended exactly as the undisturbed one" in done.stdout + done.stderr
    run = folder / "runs" / "community"
    result = json.loads((run / "result.json").read_text())
    assert [(r["level"], r["outcome"]) for r in result["recoveries"]] == [("quarantine", "recovered")] * 2
    first, second = (data["plan"] for data in events(run, "recovery_planned"))
    assert (first["avoid"], len(first["restart"])) == ([], 1)
    assert second["avoid"] == ["node-0"]
    assert sorted(second["restart"]) == [["agent", 0], ["replay", 0], ["sandbox", 0], ["tasks", 0]]
    assert second["reason"] == "2 strikes on node-0: its ranks move to other nodes"
    (moved,) = events(run, "replanned")
    assert [place["node"] for place in moved["places"]] == ["node-2"]


@pytest.mark.soak
def test_the_strategy_gives_each_rank_of_the_buffer_a_node(environment: Installed, folder: Path) -> None:
    done = environment.run("rolemesh", "plan", "job.yaml", *NODES, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    ranks = [rank for rank in json.loads(done.stdout)["ranks"] if rank["role"] == "replay"]
    assert [(rank["node"], rank["rule"]) for rank in ranks] == [
        ("node-0", "spread: the first of its role there"),
        ("node-1", "spread: the first of its role there"),
    ]


@pytest.mark.soak
def test_its_own_tests_pass_with_the_conformance_kit_of_the_wheel(
    wheels: list[Path], authors_environment: Installed, folder: Path
) -> None:
    author = make_environment(folder / "venv", wheels, base=authors_environment)
    done = author.run("python", "-m", "pytest", "-q", "--conformance-report=report.json", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [one for one in json.loads((folder / "report.json").read_text()) if one["outcome"] == "passed"]
    assert {(one["kind"], one["plugin"]) for one in passed} == TESTED
    needed = {"test_any_rank_answers_a_service_alike", "test_a_kill_at_every_operator_boundary_changes_nothing"}
    assert needed <= {one["test"] for one in passed if one["plugin"] == "arithmetic"}


def test_the_engine_runs_the_first_steps_and_has_options_of_its_own(environment: Installed, hello: Path) -> None:
    shown = environment.run("rolemesh", "run", "--engine", "preview", "--help", cwd=hello)
    assert "--steps" in shown.stdout
    assert "Emulate these nodes" not in shown.stdout  # an option of another engine's backend
    done = environment.run("rolemesh", "run", "job.yaml", "--engine", "preview", "--steps", "4", cwd=hello)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preview: 4 of 20 steps" in done.stderr
    assert json.loads((hello / "runs" / "hello" / "result.json").read_text())["committed_steps"] == 4


def test_the_backend_runs_a_job_and_stands_back(environment: Installed, hello: Path) -> None:
    roles = (hello / "roles.py").read_text()
    nice = "    import os; print('niceness', os.nice(0), flush=True)\n"
    (hello / "roles.py").write_text(roles.replace("    first = 8 * ctx.step\n", f"{nice}    first = 8 * ctx.step\n"))
    command = ("rolemesh", "run", "job.yaml", "--backend", "polite", "--niceness", "13")
    done = environment.run(*command, cwd=hello)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((hello / "runs" / "hello" / "result.json").read_text())
    assert (result["status"], result["committed_steps"]) == ("done", 20)
    assert json.loads((hello / "runs" / "hello" / "run.json").read_text())["backend"] == "polite"
    log = environment.run("rolemesh", "logs", "hello", "source/0", cwd=hello).stdout
    assert "niceness 13" in log


def test_the_extension_measures_every_rank_and_agent(environment: Installed, hello: Path) -> None:
    listed = "plugins: {extensions: [{use: resident, options: {every_s: 0, warn_gb: 0.001}}]}\n"
    with (hello / "job.yaml").open("a") as file:
        file.write(listed)
    done = environment.run("rolemesh", "run", "job.yaml", "--backend", "local", cwd=hello)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (hello / "runs" / "hello" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line)["records"] for line in lines]
    assert len(found) == 20
    for records in found:
        assert set(records) == {"resident source/0", "resident sink/0", "resident sink/1"}
        assert all(nbytes > 10_000_000 for nbytes in records.values())
    agents = events(hello / "runs" / "hello", "agent_memory")
    assert {event["agent"] for event in agents} == {"node0"}
    assert all(event["nbytes"] > 10_000_000 for event in agents)
    large = [event["rank"] for event in events(hello / "runs" / "hello", "rank_is_large")]
    assert sorted(large) == ["sink/0", "sink/1", "source/0"]


def test_the_verb_is_listed_and_tells_of_a_run(environment: Installed, hello: Path) -> None:
    assert environment.run("rolemesh", "run", "job.yaml", "--engine=inline", cwd=hello).returncode == 0
    assert (
        "Name the roles of a run that compute the longest." in environment.run("rolemesh", "--help", cwd=hello).stdout
    )
    told = environment.run("rolemesh", "slowest", "hello", cwd=hello)
    assert told.returncode == 0, told.stderr
    assert {line.split()[-1] for line in told.stdout.splitlines()} == {"source", "sink"}


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the data of the journal's events of a kind, in order."""
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line["data"] for line in lines if line["kind"] == kind]
