"""In real jobs: a failing operator reports its inputs and runs again alone, and metrics that go wrong fail the job."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROLES = """
import numpy as np
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    @operator(returns=Split())
    def make(self):
        return Batch({"number": np.arange(4) + self.ctx.step, "weight_version": np.full(4, self.ctx.step)})

    def setup(self, ctx):
        self.ctx = ctx

class Sink:
    def __init__(self, ctx):
        self.ctx, self.seen = ctx, 0

    def snapshot(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]

    @operator(batch=Split())
    def take(self, batch, rate=0.5):
        self.seen += 1
        self.ctx.metric(loss=LOSS)
        if batch["number"][0] == FAILS:
            raise ValueError(f"call {self.seen} has failed")
"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: debugged
flow: flow.py:numbers
steps: 40
roles:
  source: {use: "roles:Source"}
  sink: {use: function, options: {target: "roles.py:Sink"}}
failover: [{use: process}]
engine: {options: {snapshots: {every: 5, persist_every: 5}}}
"""
USED = "plugins: {extensions: [{use: %s, options: %s}]}\n"


def job(folder: Path, extension: str, options: str = "{}", *, loss: str = "1.0", fails: int = -1) -> Path:
    roles = ROLES.replace("LOSS", loss).replace("FAILS", str(fails))
    for name, text in (("roles.py", roles), ("flow.py", FLOW), ("job.yaml", JOB + USED % (extension, options))):
        (folder / name).write_text(text)
    return folder


def rolemesh(folder: Path, *given: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("rolemesh"), *given]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, check=False)


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return rolemesh(folder, "run", "job.yaml", "--backend", "local")


def failures(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "runs" / "debugged" / "events.jsonl").read_text().splitlines()
    return [event["data"]["failure"] for event in map(json.loads, lines) if event["kind"] == "failure"]


def test_a_failing_operator_reports_its_inputs_and_runs_again_alone(tmp_path: Path) -> None:
    done = run(job(tmp_path, "debug", fails=30))
    assert done.returncode == 1
    found = failures(tmp_path)
    assert len(found) == 2, "the exception is the same one after a restart, so the second is fatal"
    assert "batch: Batch of 4 rows (number: int64 [4], 30…33; weight_version: int64 [4], all 30)" in done.stderr
    assert "weight_version: int64 [4], all 30" in str(found[0]["message"])
    (file,) = (tmp_path / "runs" / "debugged" / "failures").iterdir()
    assert file.name == "sink-0-step-30-take.safetensors"
    (command,) = set(re.findall(r"to run it alone: rolemesh (.*)", done.stderr))
    again = rolemesh(tmp_path, *shlex.split(command), "--pdb", stdin="p 'seen', self.seen, rate\nq\n")
    assert again.returncode == 1
    assert "its state: that after step" in again.stdout
    assert "It fails" in again.stdout
    assert ", 0.5)" in again.stdout
    (tmp_path / "roles.py").write_text((tmp_path / "roles.py").read_text().replace("raise", "return 1 or"))
    fixed = rolemesh(tmp_path, "replay-op", str(file), "--fresh")
    assert (fixed.returncode, "It succeeds" in fixed.stdout) == (0, True), fixed.stdout + fixed.stderr
    file.chmod(0o666)
    assert rolemesh(tmp_path, "replay-op", str(file)).returncode == 2


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("float('nan') if self.ctx.step == 25 else 1.0", "loss is nan"),
        ("9.0 if self.ctx.step == 25 else 1.0", "loss is 9, 800 deviations from 1, the median of the last 25 values"),
    ],
)
def test_a_metric_that_goes_wrong_fails_the_job(tmp_path: Path, loss: str, message: str) -> None:
    done = run(job(tmp_path, "watch", "{loss: {spike: 6}}", loss=loss))
    assert done.returncode == 1
    found = failures(tmp_path)
    assert len(found) == 2, "the rank's next life comes to the same decision"
    assert str(found[1]["message"]).startswith(message)
    assert [(each["role"], each["rank"], each["step"]) for each in found] == [("sink", 0, 25)] * 2
    assert "in take" in str(found[0]["traceback"])


def test_a_warning_lets_the_job_go_on(tmp_path: Path) -> None:
    done = run(job(tmp_path, "watch", "{loss: {then: warn}}", loss="float('inf')"))
    assert done.returncode == 0, done.stderr
    assert "loss is inf (step 0)" in (tmp_path / "runs" / "debugged" / "metrics.jsonl").read_text()


def test_debug_shows_the_stacks_and_the_memory_of_a_rank(tmp_path: Path) -> None:
    job(tmp_path, "debug", loss="__import__('time').sleep(600)")
    command = [Path(sys.executable).with_name("rolemesh"), "run", "job.yaml", "--backend", "local"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            asked = rolemesh(tmp_path, "debug", "debugged", "sink/0", "--json")
            while asked.returncode or json.loads(asked.stdout)["phase"] != "computing":
                assert process.poll() is None, "the job has ended"
                asked = rolemesh(tmp_path, "debug", "debugged", "sink/0", "--json")
            told = json.loads(asked.stdout)
            assert told["memory"]["rss"] > 10
            assert told["memory"]["open_files"]["socket"] > 0
            assert "take (" in told["stacks"] or told["stacks"].startswith("no stacks"), told["stacks"]
            assert rolemesh(tmp_path, "debug", "debugged", "sink/9").returncode == 2
        finally:
            process.terminate()
            rolemesh(tmp_path, "stop", "debugged")
            process.wait()


@pytest.mark.more
def test_debug_waits_for_the_profile_and_names_its_file_or_says_why_there_is_none(tmp_path: Path) -> None:
    job(tmp_path, "debug", loss="__import__('torch') and (__import__('time').sleep(0.1) or 0.5)")
    command = [Path(sys.executable).with_name("rolemesh"), "run", "job.yaml", "--backend", "local", "steps=100000"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while rolemesh(tmp_path, "debug", "debugged", "sink/0").returncode:
                assert process.poll() is None, "the job has ended"
            written = rolemesh(tmp_path, "debug", "debugged", "sink/0", "--profile", "3")
            assert written.returncode == 0, written.stderr
            file = written.stdout.partition(";")[0]
            assert "traceEvents" in json.loads((tmp_path / file).read_text())
            failed = rolemesh(tmp_path, "debug", "debugged", "source/0", "--profile", "3")
            assert failed.returncode == 1, failed.stdout
            assert "source/0 has written no profile: the rank has not imported torch" in failed.stderr
        finally:
            process.terminate()
            rolemesh(tmp_path, "stop", "debugged")
            process.wait()
