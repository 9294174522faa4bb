"""Eight jobs whose figures are judged, and what their trackers got while they ran."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen

__all__ = ["CHEAP", "JOBS", "Ended", "run_of"]

EXAMPLES = Path(__file__).parents[2] / "examples"

ROLES = """
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

ENDS = ("stop", "length", "error", "stop", "stop", "length")

class Source(Workload):
    def setup(self, ctx):
        self.ctx = ctx
    @operator(returns=Split())
    def make(self):
        time.sleep(0.002)
        step, rows = self.ctx.step, range(6)
        return Batch({
            "group": [f"g{row // 2}" for row in rows],
            "reward": np.array([(step % 3 + row // 2 * row) / 10 for row in rows]),
            "finish_reason": list(ENDS),
            "completion": ["" if row == step % 7 else "words" for row in rows],
            "big": np.zeros((6, 500)),
        })

class Work(Workload):
    def setup(self, ctx):
        self.ctx = ctx
    @operator(batch=Split(), returns=Split())
    def refine(self, batch):
        time.sleep(0.03)
        if self.ctx.step == FAILING:
            raise ValueError("a row of step 12 has no label")
        self.ctx.count(made_tokens=7 * batch.rows)
        return batch

class Sink(Workload):
    def setup(self, ctx):
        self.ctx = ctx
    @operator(batch=Split())
    def take(self, batch):
        time.sleep(0.004)
        self.ctx.metric(reward=float(np.mean(batch["reward"])), loss=1.0 / (1 + self.ctx.step))
        self.ctx.count(trained_tokens=11 * batch.rows)
"""
FLOW = "from rolemesh import flow\n\n@flow\ndef f(job):\n    job.sink.take(job.work.refine(job.source.make()))\n"
JOB = """
name: {name}
flow: flow.py:f
steps: 40
metrics: {{every: {every}}}
roles:
  source: {{use: "roles:Source", resources: {{cpu: 0.1}}}}
  work: {{use: "roles:Work", world_size: 2, resources: {{cpu: 0.1, gpu: 0.5}}}}
  sink: {{use: "roles:Sink", resources: {{cpu: 0.1, gpu: 2}}}}
failover: [{{use: process, options: {{max_attempts: {attempts}}}}}]
plugins: {{extensions: [{{use: recorder, options: {{rows: {{source.make: 1}}}}}}]}}
"""
FEW = ("roles.trainer.options.warmup_steps=1",)
GRPO = (*FEW, "steps=3", "roles.data.options.prompts_per_step=3", "roles.data.options.held_out=2")
TALKS = (
    *FEW,
    "steps=3",
    "roles.tasks.options.groups=2",
    "roles.tasks.options.held_out=2",
    "roles.agent.options.samples=3",
)
ROWS = "plugins.extensions:=[{use: recorder, options: {rows: {agent.converse: 1}}}]"
NODES = ("--nodes", "3x(cpu=2,gpu=2)")
JOBS: dict[str, tuple[str, ...]] = {
    "pipeline": (*NODES, "--chaos", "kills=2,seed=3,targets=work/0,sink/0"),
    "failed": NODES,
    "sft": ("steps=12",),
    "grpo": (*GRPO, "roles.rollout.options.samples=4"),
    "agent": (*TALKS, ROWS),
    "async": (
        *TALKS, ROWS, "steps=6", "params.first=1", "params.lag=1", "name=async",
        "failover=[{use: process}, {use: job}]", "--chaos", "kills=2,seed=5,targets=agent/0,environment/0",
    ),
    "harness": (*TALKS, ROWS, "roles.agent.options.conversations=6"),
    "online": (),
}  # fmt: skip
"""The arguments of each job."""
FOLDERS = {"async": "agent"}
"""The example of a job, if it has another name."""
CHEAP = ("pipeline", "failed")
"""Jobs without a model, which are written here."""


@dataclass
class Ended:
    """A run that has ended: its folder, what the command printed, what trackers posted, and what one showed."""

    name: str
    path: Path
    printed: str
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    scraped: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        zipped = self.headers["Content-Encoding"] == "gzip"
        self.server.posted.append((self.path, gzip.decompress(body) if zipped else body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class _Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, bytes]] = []


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    thread = Thread(target=work)
    thread.start()
    yield
    thread.join()


def run_of(name: str, folder: Path) -> Ended:
    """Run a job to its end."""
    path, over, scraped = folder / "runs" / name, Event(), list[str]()

    def scrape() -> None:
        while not over.wait(0.05):
            with suppress(OSError, ValueError):
                (target,) = json.loads((path / "prometheus.json").read_text())
                with urlopen(f"http://{target['targets'][0]}/metrics", timeout=2) as answer:
                    scraped.append(answer.read().decode())

    with _Collector() as collector, _beside(collector.serve_forever):
        try:
            with _beside(scrape):
                try:
                    printed = _run(name, folder, f"http://127.0.0.1:{collector.server_port}")
                finally:
                    over.set()
        finally:
            collector.shutdown()
    return Ended(name, path, printed, collector.posted, scraped)


def _run(name: str, folder: Path, endpoint: str) -> str:
    trackers = ["{use: console}", "{use: tensorboard}", "{use: prometheus, options: {interval_s: 0}}"]
    trackers.append(f'{{use: otel, options: {{endpoint: "{endpoint}"}}}}')
    if name in CHEAP:
        failing, every, attempts = (12, 1, 1) if name == "failed" else (-1, 3, 9)
        (folder / "roles.py").write_text(f"FAILING = {failing}\n{ROLES}")
        (folder / "flow.py").write_text(FLOW)
        (folder / "job.yaml").write_text(JOB.format(name=name, every=every, attempts=attempts))
        job = folder / "job.yaml"
    else:
        trackers += ["{use: mlflow}", "{use: trackio, options: {interval_s: 0}}"]
        trackers.append("{use: wandb, options: {mode: offline, interval_s: 0}}")
        job = EXAMPLES / FOLDERS.get(name, name) / "job.yaml"
    given = ["run", str(job), f"observers:=[{', '.join(trackers)}]", *JOBS[name]]
    if name == "online":
        return _online(folder, given[2:])
    command = [str(Path(sys.executable).with_name("rolemesh")), *given, "--backend", "local", "--runs-dir", "runs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=_environ(folder))
    assert done.returncode == (1 if name == "failed" else 0), done.stdout + done.stderr
    return done.stdout


def _environ(folder: Path) -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


def _online(folder: Path, given: list[str]) -> str:
    from tests.e2e.online import Online

    os.environ.update(_environ(folder))
    job = Online(folder, events=8000, per_second=1000)
    driver = job.begin(*given)
    try:
        printed, _ = driver.communicate()
        assert driver.returncode == 0, printed
    finally:
        job.end()
    return str(printed or "")
