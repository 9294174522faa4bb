"""examples/toolbox: kinds of plugins that no template shows pass their tests and the conformance kit, uninstalled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.installed import ROOT, listed

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "toolbox"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a process for which the example is installed."""
    listed(EXAMPLE, tmp_path / "site")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(EXAMPLE / "src")])}


@pytest.mark.soak
def test_its_tests_pass_and_the_kit_finds_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--conformance-report={report}"]
    done = subprocess.run(
        [*command, str(EXAMPLE)], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(report.read_text())
    assert {(one["kind"], one["plugin"]) for one in results if one["outcome"] == "passed"} == {
        ("workloads", "guesser"),
        ("workloads", "arithmetic"),
        ("schedulers", "even"),
        ("failover", "give-up"),
    }
    needed = {"test_any_rank_answers_a_service_alike", "test_a_kill_at_every_operator_boundary_changes_nothing"}
    assert needed <= {one["test"] for one in results if (one["plugin"], one["outcome"]) == ("arithmetic", "passed")}


def test_its_job_runs_with_agents_that_call(environ: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rolemesh.cli", "run", str(EXAMPLE / "job.yaml"), "--backend", "local"]
    nodes = ["--nodes", "2x(cpu=4)", "--runs-dir", str(tmp_path / "runs"), "steps=10"]
    done = subprocess.run(
        [*command, *nodes], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "runs" / "toolbox" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["share"] == 1.0
