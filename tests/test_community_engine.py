"""examples/community-engine: an engine, a backend, an extension and a verb of a stranger, from their wheel, by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.installed import ROOT, Dist, Installed, build_wheel, make_environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(dist: Dist, whole_installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The distributions of ``pip install 'rolemesh[local]'``, and the example's wheel."""
    folder = tmp_path_factory.mktemp("engine")
    wheels = [dist.wheel("rolemesh"), build_wheel(ROOT / "examples" / "community-engine", folder)]
    return make_environment(folder / "venv", wheels, base=whole_installed)


@pytest.fixture
def hello(tmp_path: Path) -> Path:
    """The folder with the job ``hello``."""
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    return Path(shutil.copytree(ROOT / "examples" / "hello", tmp_path / "hello", ignore=ignored))


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
    lines = (hello / "runs" / "hello" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    agents = [event["data"] for event in events if event["kind"] == "agent_memory"]
    assert {event["agent"] for event in agents} == {"node0"}
    assert all(event["nbytes"] > 10_000_000 for event in agents)
    large = [event["data"]["rank"] for event in events if event["kind"] == "rank_is_large"]
    assert sorted(large) == ["sink/0", "sink/1", "source/0"]


def test_the_verb_is_listed_and_tells_of_a_run(environment: Installed, hello: Path) -> None:
    assert environment.run("rolemesh", "run", "job.yaml", "--engine=inline", cwd=hello).returncode == 0
    assert (
        "Name the roles of a run that compute the longest." in environment.run("rolemesh", "--help", cwd=hello).stdout
    )
    told = environment.run("rolemesh", "slowest", "hello", cwd=hello)
    assert told.returncode == 0, told.stderr
    assert {line.split()[-1] for line in told.stdout.splitlines()} == {"source", "sink"}


def test_all_four_are_listed(environment: Installed, hello: Path) -> None:
    rows = json.loads(environment.run("rolemesh", "plugins", "list", "--json", cwd=hello).stdout)
    theirs = {(row["kind"], row["name"]) for row in rows if row["distribution"] == "rolemesh-workbench"}
    assert theirs == {
        ("engines", "preview"),
        ("backends", "polite"),
        ("extensions", "resident"),
        ("commands", "slowest"),
    }
