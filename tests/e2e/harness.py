"""A job folder and the command line around it, and what may be left of jobs on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml
from tests.waiting import until

from rolemesh.api.observer import JobStatus
from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_durable.extensions.rehearsal.requests import InjectFault

ROLES = '''
import os
import signal
import time

import numpy as np

from rolemesh import Batch, Broadcast, Split, operator


class Source:
    """Rows with their global number; 6 a step over all ranks."""

    def __init__(self, ctx):
        self.ctx = ctx
        self.made = 0

    @operator(returns=Split())
    def next(self):
        per = 6 // self.ctx.world_size
        first = self.ctx.step * 6 + self.ctx.rank * per
        self.made += per
        return Batch({"x": np.arange(first, first + per, dtype=np.float64)})

    def snapshot(self):
        return {"made": self.made}

    def restore(self, state):
        self.made = state["made"]


class Work:
    """Squares numbers, slowly if told. At a given step it waits until the file `awaited` has content, and then fails or
    dies."""

    def __init__(self, ctx, fail_at=-1, die_at=-1, on_rank=0, sleep=0.0, awaited=""):
        self.ctx, self.sleep = ctx, sleep
        self.awaited = awaited
        mine = ctx.rank == on_rank
        self.fail_at = fail_at if mine else -1
        self.die_at = die_at if mine else -1

    @operator(rows=Split(), returns=Split())
    def square(self, rows):
        if self.ctx.step in (self.fail_at, self.die_at):
            while self.awaited and not (os.path.exists(self.awaited) and os.path.getsize(self.awaited)):
                time.sleep(0.01)
        if self.ctx.step == self.fail_at:
            return self.broken(rows)
        if self.ctx.step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.sleep)
        self.ctx.metric(largest=float(rows["x"].max(initial=0.0)))
        self.ctx.count(rows=rows.rows)
        return rows | {"y": rows["x"] ** 2}

    def broken(self, rows):
        raise KeyError("no such column: 'z'")


class Sink:
    """Adds up; its state is the sum and how often it was called."""

    def __init__(self, ctx):
        self.ctx, self.total, self.calls = ctx, 0.0, 0

    @operator(rows=Broadcast())
    def add(self, rows):
        self.total += float(rows["y"].sum())
        self.calls += 1
        self.ctx.metric(reward=self.total)

    def snapshot(self):
        return {"total": self.total, "calls": self.calls}

    def restore(self, state):
        self.total, self.calls = state["total"], state["calls"]
'''

FLOW = """
from rolemesh import flow


@flow
def squares(job):
    job.sink.add(job.work.square(job.source.next()))
"""

JOB = """
name: {name}
flow: flow.py:squares
steps: 20
seed: 7
roles:
  source: {{use: function, options: {{target: "roles.py:Source"}}, resources: {{cpu: 0.1}}}}
  work: {{use: function, world_size: 2, options: {{target: "roles.py:Work", kwargs: {{}}}}, resources: {{cpu: 0.1}}}}
  sink: {{use: function, options: {{target: "roles.py:Sink"}}, resources: {{cpu: 0.1}}}}
engine: {{options: {{stop_grace_s: 2}}}}
"""


def one_engine(text: str) -> str:
    """The job file with its keys ``engine`` made one, since YAML has each key once. Of each it keeps the options."""
    found: dict[str, Any] = {}
    others = []
    for key in re.split(r"^(?=\S)", f"{text}\n", flags=re.MULTILINE):  # with the indented lines below it
        if key.startswith("engine:"):
            found |= yaml.safe_load(key)["engine"]["options"]
        else:
            others.append(key)
    return "".join([*others, f"engine: {json.dumps({'options': found})}\n"]) if found else text


def leftovers(job_ids: Iterable[str]) -> set[str]:
    """Processes, shm folders and sockets of these jobs on this machine.

    It looks for folders after processes. A look at a folder while a janitor renames an entry may see neither name; then
    that janitor is found.
    """
    ids, found = tuple(job_ids), set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                environ = Path("/proc", entry, "environ").read_bytes().split(b"\0")
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            mark = next((item.decode() for item in environ if item.startswith(b"ROLEMESH_JOB=")), "")
            if any(job_id in mark or job_id in command for job_id in ids):
                found.add(f"process {entry}: {command[:120]}")
    places = [*Path("/dev/shm").glob("rolemesh-*"), *Path("/tmp").glob("rolemesh-*")]
    return found | {str(path) for path in places if any(job_id in path.name for job_id in ids)}


def nothing_is_left(job_ids: Iterable[str]) -> None:
    """Wait until there are no leftovers of these jobs; fail with what there is."""
    ids = set(job_ids)
    until(lambda: not leftovers(ids), lambda: f"nothing is left of the jobs: {sorted(leftovers(ids))}")


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file that is being written: the last one may not be whole yet."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@dataclass
class Job:
    """A job folder with its command line."""

    folder: Path
    name: str
    backend: tuple[str, ...]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "runs" / self.name

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "rolemesh.cli", *args]

    def cli(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*args), cwd=self.folder, capture_output=True, text=True, check=False)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.cli("run", "job.yaml", *args, *self.backend)

    def start(self, *args: str, console: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self.command("run", "job.yaml", *args, *self.backend),
            cwd=self.folder,
            stdout=console,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def ids(self) -> set[str]:
        """The ids of all jobs that ran here."""
        found = set()
        for name in ("control.json", "result.json"):
            for path in (self.folder / "runs").glob(f"**/{name}"):
                found.add(json.loads(path.read_text())["job_id"])
        return found

    def status(self) -> JobStatus | None:
        try:
            with ControlClient(self.run_dir, 1.0) as client:
                return client.status()
        except MasterGoneError:
            return None

    def kill_process(self, target: str) -> None:
        """Kill a process of the job. The answer of a master that is killed may be lost with it."""
        gone = suppress(MasterGoneError) if target == "master" else nullcontext()
        with ControlClient(self.run_dir) as client, gone:
            client.ask(InjectFault("kill", target))

    def running(self, step: int = 0) -> JobStatus:
        """Wait until the job runs and has committed `step`."""

        def check() -> JobStatus | None:
            for process in self.started:
                if process.poll() is not None:
                    raise AssertionError(f"ended early:\n{process.stdout.read() if process.stdout else ''}")
            status = self.status()
            return status if status and status.state == "running" and status.committed >= step else None

        found: JobStatus = until(check, "the job runs")
        return found

    def result(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.run_dir / "result.json").read_text())
        return loaded

    def metrics(self) -> list[dict[str, Any]]:
        return whole_lines(self.run_dir / "metrics.jsonl")

    def events(self) -> list[dict[str, Any]]:
        return whole_lines(self.run_dir / "events.jsonl")
