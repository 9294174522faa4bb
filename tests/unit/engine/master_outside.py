"""A master's outside for tests: its files, its journal and its control socket, served by a thread."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from rolemesh.api.observer import AgentStatus, Event, JobStatus, RankStatus, RoleTimes, RunInfo, StepMetrics
from rolemesh.runs.jsonl import event_line, metrics_line
from rolemesh.runs.run import CONTROL_FILE, EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_durable.control.client import Request, StopJob
from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.journal.line_file import LineFile
from rolemesh_durable.master.answers import Answers
from rolemesh_durable.runs import ControlFile
from rolemesh_runtime.json_file import write_json


class _Recording(Answers):
    """Answers that keep their requests."""

    requests: list[Any]

    def _answer(self, data: bytes) -> bytes:
        self.requests.append(msgspec.msgpack.decode(data, type=Request))
        return super()._answer(data)


class MasterOutside:
    """Answers as a master does, for a job of two ranks and 10 steps. `remembers`: how many events and lines."""

    def __init__(self, runs: Path, name: str = "grpo", remembers: int = 1000) -> None:
        self.run_dir = runs / name
        self.name = name
        self.requests: list[Any] = []
        self.on_stop: Callable[[], None] = lambda: self.end("interrupted", 130, "asked to stop")
        self._job_id = f"{name}-1"
        (self.run_dir / "logs").mkdir(parents=True)
        (self.run_dir / "job.yaml").write_text(f"name: {name}\nengine: {{options: {{state: sqlite}}}}\n")
        self._context = zmq.Context()
        self._sockets = tempfile.mkdtemp(prefix="rolemesh-test-")
        self._started = time.time()
        self.info = RunInfo(name, str(self.run_dir), 10, {"data": 1, "trainer": 1}, ("data.next",), "local")
        write_json(self.run_dir / RUN_FILE, self.info)
        self._log = EventLog.open("sqlite", self.run_dir, self._job_id)
        self._epoch = self._log.claim()
        self._event_lines = LineFile(self.run_dir / EVENTS_FILE, "seq", 1)
        self._metric_lines = LineFile(self.run_dir / METRICS_FILE, "step", 0)
        self._events: deque[Event] = deque(maxlen=remembers)
        self._lines: deque[StepMetrics] = deque(maxlen=remembers)
        self._steps = 0
        self.warnings: tuple[str, ...] = ()
        self._state = "running"
        self._lock = threading.Lock()
        self.answers = threading.Event()
        self._tokens: list[int] = []
        self.answers.set()
        self.come_up()

    def come_up(self) -> None:
        """Listen and answer, the first time or after `die`: elsewhere then."""
        path = f"ipc://{self._sockets}/{len(os.listdir(self._sockets))}"
        self._answers = _Recording(
            self._context,
            path,
            status=self._status,
            events=lambda: self._events,
            lines=lambda: self._lines,
            put=lambda event: None,
            others={},
        )
        self._answers.requests = self.requests
        control = ControlFile(self.name, self._job_id, "local", path, 4242, self._started)
        write_json(self.run_dir / CONTROL_FILE, control)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(self._answers, self._ended))
        self._thread.start()

    def age(self, count: int) -> None:
        """Be a job of `count` events and steps, of which the journal has none any more."""
        with self._lock:
            made = time.time()
            events = [Event(n + 1, 1, made, "noise", {"n": n}) for n in range(count)]
            lines = [StepMetrics(n, 1, made, {"reward": 0.5}, {}, {}) for n in range(count)]
            self._metric_lines.append([metrics_line(line) for line in lines])
            (self.run_dir / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
            before = self._log._mine(self._epoch)
            self._log._write(before, before._replace(last=count, first=count + 1))
            self._events += events
            self._lines += lines
            self._steps = count

    def hush(self) -> None:
        """Answer nothing from now on, not even what waits already."""
        with self._lock:
            self.answers.clear()

    def answer_one(self) -> None:
        """Answer one question, however many wait, although `answers` is not set."""
        self._tokens.append(1)

    def journal(self, kind: str, **data: Any) -> None:
        """Journal an event."""
        with self._lock:
            events = self._log.append(self._epoch, [(time.time(), kind, data)])
            self._events += events
            self._event_lines.append([event_line(events[0])])

    def step(self, **values: float) -> None:
        """Finish the next step."""
        with self._lock:
            n = self._steps
            self._steps += 1
            roles = {"data": RoleTimes(0.1, 0.9, 0.0), "trainer": RoleTimes(0.9, 0.1, 0.0)}
            line = StepMetrics(n, 1, time.time(), values, {"trainer.train": values}, roles)
            self._lines.append(line)
            self._metric_lines.append([metrics_line(line)])

    def end(self, status: str = "done", exit_code: int = 0, message: str = "") -> None:
        """Leave a result and stop answering."""
        self.journal("job_ended", status=status)
        result = {
            "name": self.name,
            "job_id": self._job_id,
            "status": status,
            "exit_code": exit_code,
            "message": message,
            "committed_steps": self._steps,
            "steps": 10,
            "wall_s": 1.5,
            "state_sha256": {},
            "plugins": {},
            "run_dir": str(self.run_dir),
        }
        self._event_lines.close()
        self._metric_lines.close()
        write_json(self.run_dir / RESULT_FILE, result)
        (self.run_dir / CONTROL_FILE).unlink()
        self._ended.set()

    def die(self) -> None:
        """Stop answering and leave no result."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def close(self) -> None:
        """Give everything back."""
        self.answers.set()
        self.die()
        self._context.term()
        self._log.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _serve(self, answers: Answers, ended: threading.Event) -> None:
        while not ended.is_set():
            if not answers.sockets[0].poll(10):
                continue
            at_once = None if self.answers.wait(0.01) else self._tokens.pop() if self._tokens else 0
            if at_once == 0:
                continue
            before = len(self.requests)
            with self._lock:
                if at_once is None and not self.answers.is_set():
                    continue
                answers.serve(*[] if at_once is None else [at_once])
            if any(isinstance(request, StopJob) for request in self.requests[before:]):
                self._state = "stopping"
                self.on_stop()
        answers.sockets[0].close(linger=0)

    def _status(self) -> JobStatus:
        step = self._steps
        agents = (AgentStatus("agent-0", "node-a", 4300, "up"),)
        ranks = (
            RankStatus("data", 0, "node-a", 4301, "running", step, "waiting", "trainer.train"),
            RankStatus("trainer", 0, "node-a", 4302, "running", step, "computing", "train"),
        )
        started, committed = self._started, step - 1
        status = JobStatus(self.name, self._state, 1, committed, 10, started, 4242, "host-a", agents, ranks)
        return msgspec.structs.replace(status, warnings=self.warnings)
