"""A stranger's job folder: two small roles whose files a test spoils, and plugins that are installed beside it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = """name: odd
flow: flow.py:pairs
steps: 3
roles:
  maker: {use: function, options: {target: "roles.py:Maker"}, resources: {cpu: 0.1}}
  taker: {use: function, options: {target: "roles.py:Taker"}, resources: {cpu: 0.1}}
engine: {options: {stop_grace_s: 2}}
"""

FLOW = """from rolemesh import flow


@flow
def pairs(job):
    job.taker.take(job.maker.make())
"""

ROLES = """import os
import sys

import numpy as np

from rolemesh import Batch, Broadcast, Sharded, Split, operator


class Maker:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def make(self):
        return Batch({"x": np.arange(4.0)})


class Taker:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(rows=Split())
    def take(self, rows):
        pass
"""

MAKE = '        return Batch({"x": np.arange(4.0)})\n'
"""The line of `ROLES` that a test replaces to let an operator misbehave."""


@dataclass
class Stranger:
    """A job folder and the real command line in it."""

    folder: Path

    def write(self, job: str = JOB, flow: str = FLOW, roles: str = ROLES) -> Stranger:
        (self.folder / "job.yaml").write_text(job)
        (self.folder / "flow.py").write_text(flow)
        (self.folder / "roles.py").write_text(roles)
        return self

    def make(self, body: str, more: str = "") -> Stranger:
        """Write the folder with `body` as the maker's operator and `more` as further methods of the taker."""
        assert MAKE in ROLES
        lines = "".join(f"        {line}\n" for line in body.splitlines()) if body else MAKE
        tail = "".join(f"    {line}\n" if line else "\n" for line in more.splitlines())
        return self.write(roles=ROLES.replace(MAKE, lines) + tail)

    def install(self, name: str, kind: str, plugin: str, code: str, *, module: str = "") -> None:
        """A distribution `name` whose class ``Plugin`` is the plugin `plugin`; it is on the path of what `cli` runs."""
        module = module or name.replace("-", "_")
        site = self.folder / "site"
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rolemesh.{kind}]\n{plugin} = {module}:Plugin\n")
        (site / f"{module}.py").write_text(code)

    def cli(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, (str(self.folder / "site"), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, "-m", "rolemesh.cli", *args],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": path} | env,
        )

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.cli("run", "job.yaml", "--backend", "local", *args)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "runs" / "odd" / "result.json").read_text())
        return found

    def stops_at_once(self) -> bool:
        """Return whether a failure is followed by the end of the job, without a recovery and without time for ranks."""
        lines = (self.folder / "runs" / "odd" / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        later = itertools.dropwhile(lambda event: event["kind"] != "failure", events)
        told = ("recovery_planned", "job_stopping", "job_ended")
        after = next(event for event in later if event["kind"] in told)
        return after["kind"] != "recovery_planned" and not after["data"].get("grace_s")

    def log(self, rank: str) -> str:
        return (self.folder / "runs" / "odd" / "logs" / f"{rank}.log").read_text()
