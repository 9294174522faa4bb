"""Checks before the start: on emulated nodes, in processes of their own, with failures that are real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind, total

Make = Callable[..., Job]
NODES = ("--backend", "local", "--nodes", "3x(cpu=2)")
MINE = """
import os
import time

from rolemesh_durable.checks import Check, CheckOptions


class Options(CheckOptions):
    bad: list[str] = []
    how: str = "slow"


class Mine(Check):
    Options = Options

    def measure(self, node):
        print("measures", node.id, "with", node.together, flush=True)
        bad = node.id in self.options.bad
        if bad and self.options.how == "raise":
            raise ValueError("the fan is broken")
        if bad and self.options.how == "die":
            os.abort()
        if bad and self.options.how == "hang":
            time.sleep(100)
        return {"speed": 1.0 if bad else 10.0}
"""
ONE_CPU = [f"roles.{role}.resources.cpu=1" for role in ("source", "work", "sink")]
LADDER = "failover=[{use: process}, {use: node, options: {node_wait_s: 2}}]"


def checked(how: str, *bad: str) -> str:
    options = f"{{slower: 2, timeout_s: {8 if how == 'hang' else 60}, how: {how}, bad: [{', '.join(bad)}]}}"
    return f"plugins={{checks: [{{use: 'mine.py:Mine', options: {options}}}]}}"


@pytest.fixture
def job(make_job: Make) -> Job:
    made = make_job(backend=NODES)
    (made.folder / "mine.py").write_text(MINE)
    return made


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param("slow", "check mine.py:Mine: speed is 1, and 10 on the other node", marks=pytest.mark.soak),
        ("die", "exit code -6; measures node-0"),
        pytest.param("hang", "it took longer than timeout_s = 8 s", marks=pytest.mark.soak),
    ],
)
def test_ranks_start_on_no_node_that_fails_and_find_another(job: Job, how: str, why: str) -> None:
    done = job.run(*ONE_CPU, LADDER, checked(how, "node-0"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.metrics()[-1]["reward"] == total(20)
    found = {event["data"]["node"]: event["data"].get("unfit", "") for event in of_kind(job, "node_checked")}
    assert set(found) == {"node-0", "node-1", "node-2"}
    assert why in found["node-0"]
    assert not found["node-1"]
    assert not found["node-2"]
    assert {event["data"]["node"] for event in of_kind(job, "rank_up")} == {"node-1", "node-2"}
    assert "node node-0 is left out: check mine.py:Mine" in done.stdout
    (recovery,) = job.result()["recoveries"]
    assert (recovery["level"], recovery["outcome"]) == ("node", "recovered")


@pytest.mark.parametrize("ladder", ["failover=[]", LADDER])
def test_without_another_node_the_job_says_which_one_fails_and_why(job: Job, ladder: str) -> None:
    bad = ("node-0", "node-1", "node-2") if ladder == LADDER else ("node-0",)
    done = job.run(*ONE_CPU, ladder, checked("raise", *bad))
    assert done.returncode == 1, done.stdout
    failure = job.result()["failure"]
    assert (failure["cause"], failure["node"] in bad) == ("check", True)
    assert "check mine.py:Mine failed: ValueError: the fan is broken" in done.stderr
    assert of_kind(job, "rank_up") == []


def test_the_checks_of_the_distribution_measure_every_node(job: Job) -> None:
    few = (
        "{use: network, options: {mb: 8, slower: 1000}}, {use: matmul, options: {size: 128, device: cpu, slower: 1000}}"
    )
    rest = "{use: memory, options: {mb: 4, slower: 1000}}, {use: disk, options: {mb: 1, at_least: {}}}, shm"
    done = job.run(*ONE_CPU, f"plugins={{checks: [{few}, {rest}]}}")
    assert done.returncode == 0, done.stdout + done.stderr
    for event in of_kind(job, "node_checked"):
        found = {measured["check"]: measured["values"] for measured in event["data"]["measured"]}
        assert set(found) == {"network", "matmul", "memory", "disk", "shm"}
        assert all(value > 0 for values in found.values() for value in values.values())
        assert found["network"]
    assert [path for path in job.run_dir.iterdir() if path.name.startswith(".network")] == []


def test_a_kind_that_nobody_declares_is_an_error_with_its_place(job: Job) -> None:
    refused = job.cli("validate", "job.yaml", "plugins={check: [matmul]}")
    assert refused.returncode == 2
    assert "there is no kind 'check' of plugins that jobs list here" in refused.stderr
    assert "checks" in refused.stderr
    assert not Path(job.run_dir).exists()
