"""A viewer never affects a job: absent, killed, stopped or slow, the job computes the same, at the same rate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.waiting import HANG_S

pytestmark = [pytest.mark.soak, pytest.mark.slow]

ROLES = """
import hashlib
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

class Source(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def make(self):
        time.sleep(0.01)
        return Batch({"x": np.random.default_rng(self.ctx.step).random((64, 64))})

class Sink(Workload):
    def setup(self, ctx):
        self.ctx, self.sum = ctx, hashlib.sha256()

    @operator(batch=Split())
    def take(self, batch):
        self.sum.update(batch["x"].tobytes())
        (self.ctx.run_dir / "sum").write_text(self.sum.hexdigest())
"""
FLOW = """
from rolemesh import flow

@flow
def numbers(job):
    job.sink.take(job.source.make())
"""
JOB = """
name: watched
flow: flow.py:numbers
steps: 3000
roles:
  source: {use: "roles:Source"}
  sink: {use: "roles:Sink"}
plugins: {extensions: [{use: recorder}]}
"""
ROLEMESH = Path(sys.executable).with_name("rolemesh")
SLOWER = 0.9
"""Minimum ratio of the rate with a viewer to the rate without one. Steps consist of a sleep, so the rate is steady."""


class Viewer:
    """`rolemesh view` of a run, as a process."""

    def __init__(self, folder: Path) -> None:
        command = [ROLEMESH, "view", str(folder), "--no-open"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().replace("/overview", "/flow")
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def page(self) -> str:
        """Return the page of the flow."""
        with self._opener.open(self.address, timeout=HANG_S) as answer:
            text: str = answer.read().decode()
        return text

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def run(folder: Path, how: str) -> tuple[str, float]:
    """Return the sum of what the job has computed, and its steps per second, while a viewer fares as `how` says."""
    folder.mkdir()
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (folder / name).write_text(text)
    path = folder / "runs" / "watched"
    viewers = []
    with subprocess.Popen([ROLEMESH, "run", "job.yaml", "--backend", "local"], cwd=folder, stdout=-3) as job:
        try:
            while not (path / "metrics.jsonl").exists():
                assert job.poll() is None, "the job has ended"
                time.sleep(0.05)
            if how == "slow":  # it halts again and again while somebody asks it for one page after the other
                viewers = [slow := Viewer(path), slow]
                while job.poll() is None:
                    os.kill(slow.process.pid, signal.SIGSTOP)
                    time.sleep(0.2)
                    os.kill(slow.process.pid, signal.SIGCONT)
                    assert "Critical path" in slow.page()
            while how in ("killed", "stopped") and job.poll() is None and len(viewers) < 2:
                viewers.append(viewer := Viewer(path))
                assert "Critical path" in viewer.page()
                os.kill(viewer.process.pid, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
                time.sleep(0.5)
            early = how in ("killed", "stopped") and (len(viewers) != 2 or job.poll() is not None)
            assert not early, "the job ended before the viewers"
            assert job.wait() == 0
        finally:
            for viewer in set(viewers):
                viewer.end()
            job.terminate()
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return (path / "sum").read_text(), (lines[-1]["step"] - lines[0]["step"]) / (lines[-1]["time"] - lines[0]["time"])


def test_killed_stopped_and_slow_viewers_change_neither_the_results_of_a_job_nor_its_rate(tmp_path: Path) -> None:
    found = {how: run(tmp_path / how, how) for how in ("absent", "killed", "stopped", "slow")}
    print({how: f"{rate:.1f} steps/s" for how, (_, rate) in found.items()})
    assert len({digest for digest, _ in found.values()}) == 1
    alone = found["absent"][1]
    assert all(rate >= SLOWER * alone for _, rate in found.values()), found
