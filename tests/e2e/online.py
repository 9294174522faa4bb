"""The example `online` with a broker, a producer and a client of its own, all of which may be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples/online"
sys.path.insert(0, str(EXAMPLE))
from broker import command, nats_command  # noqa: E402
from clicks import block  # noqa: E402
from features import GIVEN, keys  # noqa: E402
from server import Predictor  # noqa: E402

from rolemesh_embeddings import Export  # noqa: E402

__all__ = ["EXAMPLE", "GIVEN", "Client", "Export", "Online", "block", "keys", "percentile"]

SECRET = "s3cret-of-the-broker"
NATS = (
    "plugins.sources:=[{use: nats, options: "
    "{url: '${REDIS_URL}', streams: [CLICKS-0, CLICKS-1], until: sealed, trim: true}}]"
)
CLOSED = (
    "plugins.sources:=[{use: redis, options: "
    "{url: '${REDIS_URL}', streams: ['clicks:0', 'clicks:1'], until: closed, trim: true}}]"
)
"""A stream that ends when the test says so (`Online.close`), however long that takes."""
PROBE = [{"user": n, "item": 7 * n, "segment": n % 8, "topic": n % 16} for n in range(24)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def percentile(job: Job, metric: str, share: float) -> float:
    """Return a percentile of a metric over the lines that have it."""
    found = sorted(line[metric] for line in job.metrics() if metric in line)
    return float(found[min(int(share * len(found)), len(found) - 1)])


class Client(threading.Thread):
    """Asks the same thing again and again, and reads the exports: what both say by step, and what is `wrong` of it."""

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self.port, self.folder, self.over = port, folder, threading.Event()
        self.answers: dict[int, list[float]] = {}
        self.exported: dict[int, list[float]] = {}
        self.wrong, self.asked = list[str](), 0

    def run(self) -> None:
        from http.client import HTTPConnection, HTTPException

        body, read = json.dumps({"events": PROBE}), None
        probe = keys(*(np.array([each[name] for each in PROBE]) for name in GIVEN))
        predictor = Predictor(seed=0)
        while not self.over.wait(0.01):
            try:
                read = Export.read(self.folder, read)
                self._see(self.exported, read.step, [float(each) for each in predictor.predict(read, probe)])
            except FileNotFoundError:
                pass
            connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
            try:
                connection.request("POST", "/predict", body)
                response = connection.getresponse()
                data = response.read()
            except (OSError, HTTPException):
                continue
            finally:
                connection.close()
            if response.status == 200:
                self.asked += 1
                found = json.loads(data)
                self._see(self.answers, found["step"], found["clicks"])

    def _see(self, found: dict[int, list[float]], step: int, chance: list[float]) -> None:
        if found.setdefault(step, chance) != chance:
            self.wrong.append(f"step {step} is there in two ways")

    def finish(self) -> int:
        """Ask no more; how many steps were answered whose exports were seen, too."""
        self.over.set()
        self.join()
        both = self.answers.keys() & self.exported.keys()
        self.wrong += [f"the answer of {step} is not its export's" for step in both if not self._same(step)]
        return len(both)

    def _same(self, step: int) -> bool:
        return self.answers[step] == self.exported[step]


class Online(Job):
    """The example's job with `events` to come, from a broker of the `kind` redis or nats."""

    def __init__(
        self, folder: Path, events: int, per_second: float, period: int = 1_000_000, kind: str = "redis"
    ) -> None:
        super().__init__(folder, "online", ("--backend", "local"))
        self.port, self.http, self.period, self.kind = free_port(), free_port(), period, kind
        self.environ = os.environ | {"REDIS_URL": f"{kind}://:{SECRET}@127.0.0.1:{self.port}", "OMP_NUM_THREADS": "1"}
        if kind == "nats":
            self.environ["REDIS_URL"] = f"nats://test:{SECRET}@127.0.0.1:{self.port}"
        self._args = ["--events", str(events), "--per-second", str(per_second), "--period", str(period)]
        self._others: dict[str, subprocess.Popen[str]] = {}
        self.client = Client(self.http, self.run_dir / "export")

    def command(self, *args: str) -> list[str]:
        if args[:2] == ("run", "job.yaml"):
            source = [NATS, "roles.clicks.options.source=nats"] if self.kind == "nats" else []
            args = ("run", str(EXAMPLE / "job.yaml"), f"roles.server.options.port={self.http}", *source, *args[2:])
        return super().command(*args)

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """Start everything; the job's driver."""
        for name in ("broker", "producer"):
            self._start(name)
        os.environ["REDIS_URL"] = self.environ["REDIS_URL"]
        driver = self.start(*args)
        self.client.start()
        return driver

    def _start(self, name: str) -> None:
        (self.folder / "broker").mkdir(exist_ok=True)
        if self.kind == "nats":
            user = f'authorization {{ user: test, password: "{SECRET}" }}'
            arguments = nats_command(self.port, self.folder / "broker", user)
        else:
            arguments = [*command(self.port, self.folder / "broker"), "--requirepass", SECRET]
        if name == "producer":
            arguments = [sys.executable, str(EXAMPLE / "producer.py"), *self._args]
        with (self.folder / f"{name}.log").open("a") as log:
            made = subprocess.Popen(arguments, env=self.environ, stdout=log, stderr=log, text=True)
        self._others[name] = made

    def kill(self, target: str, away_s: float = 0.3) -> None:
        """Kill a rank, an agent, the master; or the broker or the producer, which are started again after a while."""
        if target in self._others:
            self._others[target].send_signal(signal.SIGKILL)
            self._others[target].wait()
            time.sleep(away_s)
            self._start(target)
            return
        kinds = ("recovered", "master_recovered", "agent_adopted", "agent_back", "agent_started")
        before = len(of_kind(self, *kinds))
        self.kill_process(target)
        until(lambda: len(of_kind(self, *kinds)) > before, f"{target} is back")

    def close(self) -> None:
        """End a stream that is `CLOSED`, once the producer has sent all."""
        from redis import Redis

        with Redis.from_url(self.environ["REDIS_URL"]) as broker:
            until(lambda: broker.exists("clicks:done"), "all events are sent")
            broker.set("closed", broker.get("clicks:done"))

    def end(self) -> None:
        """Nothing of it runs any more."""
        self.client.finish()
        for process in self._others.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def seen(self) -> int:
        """How many events were learned from by the newest line of metrics."""
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 16384, 0))
            lines = file.read().split(b"\n")[1:-1]
        return int(json.loads(lines[-1])["records"]["seen"]) if lines else 0

    def told(self) -> list[Path]:
        """Files of the run that have the broker's password."""
        files = (path for path in self.run_dir.rglob("*") if path.is_file())
        return [path for path in files if SECRET.encode() in path.read_bytes()]

    def sums(self) -> Mapping[str, Any]:
        """The counts of the trainer."""
        records = self.metrics()[-1]["records"]
        return {name: records[name] for name in ("seen", "total", "clicks")}
