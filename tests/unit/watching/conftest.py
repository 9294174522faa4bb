"""A master's outside for tests: its files, its journal and its control socket, served by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from rolemesh.builtin.jsonl import JsonlObserver
from rolemesh.control import CONTROL_FILE, Control, Request, StopJob, Update, Watch
from rolemesh.observer import AgentStatus, Event, JobStatus, RankStatus, RoleTimes, RunInfo, StepMetrics
from rolemesh.runs import RESULT_FILE, RUN_FILE, write_json
from rolemesh.state import Store
from rolemesh.workload import NoOptions


class MasterOutside:
    """Speaks the control protocol for a job of two ranks and 10 steps. `remembers` is how many lines it still knows."""

    def __init__(self, runs: Path, name: str = "grpo", remembers: int = 1000) -> None:
        self.run_dir = runs / name
        self.name = name
        self.requests: list[Any] = []
        self.on_stop: Callable[[], None] = lambda: self.end("interrupted", 130, "asked to stop")
        self._job_id = f"{name}-1"
        self._remembers = remembers
        (self.run_dir / "logs").mkdir(parents=True)
        (self.run_dir / "job.yaml").write_text(f"name: {name}\nstate: sqlite\n")
        self._context = zmq.Context()
        self._started = time.time()
        self.info = RunInfo(name, str(self.run_dir), 10, {"data": 1, "trainer": 1}, ("data.next",), "local")
        write_json(self.run_dir / RUN_FILE, self.info)
        self._store = Store.open("sqlite", self.run_dir, self._job_id)
        self._epoch = self._store.claim()
        self._jsonl = JsonlObserver(NoOptions())
        self._jsonl.job_started(self.info)
        self._events: list[Event] = []
        self._lines: list[StepMetrics] = []
        self._state = "running"
        self._lock = threading.Lock()
        self.answers = threading.Event()
        self.answers.set()
        self.come_up()

    def come_up(self) -> None:
        """Listen and answer, the first time or after `die`: elsewhere then."""
        self._socket = self._context.socket(zmq.REP)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        control = Control(self.name, self._job_id, "local", f"tcp://127.0.0.1:{port}", 4242, self._started)
        write_json(self.run_dir / CONTROL_FILE, control)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(self._socket, self._ended))
        self._thread.start()

    def journal(self, kind: str, **data: Any) -> None:
        """Journal an event."""
        with self._lock:
            events = self._store.append(self._epoch, [(time.time(), kind, data)])
            self._events += events
            self._jsonl.event(events[0])

    def step(self, **values: float) -> None:
        """Finish the next step."""
        with self._lock:
            n = len(self._lines)
            roles = {"data": RoleTimes(0.1, 0.9, 0.0), "trainer": RoleTimes(0.9, 0.1, 0.0)}
            line = StepMetrics(n, 1, time.time(), values, {"trainer.train": values}, roles)
            self._lines.append(line)
            self._jsonl.steps_finished((line,))

    def end(self, status: str = "done", exit_code: int = 0, message: str = "") -> None:
        """Leave a result and stop answering."""
        self.journal("job_ended", status=status)
        result = {
            "name": self.name,
            "job_id": self._job_id,
            "status": status,
            "exit_code": exit_code,
            "message": message,
            "committed_steps": len(self._lines),
            "steps": 10,
            "wall_s": 1.5,
            "state_sha256": {},
            "plugins": {},
            "run_dir": str(self.run_dir),
        }
        self._jsonl.job_ended(result)
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
        self._store.close()

    def _serve(self, socket: zmq.Socket[bytes], ended: threading.Event) -> None:
        while not ended.is_set():
            if not socket.poll(10):
                continue
            self.answers.wait()
            request = msgspec.msgpack.decode(socket.recv(), type=Request)
            self.requests.append(request)
            stop = isinstance(request, StopJob)
            if stop:
                self._state = "stopping"
            with self._lock:
                update = Update(self._status())
                if isinstance(request, Watch):
                    events = tuple(event for event in self._events if event.seq > request.event)
                    lines = tuple(line for line in self._lines[-self._remembers :] if line.step > request.step)
                    update = Update(self._status(), events, lines)
            socket.send(msgspec.msgpack.encode(update))
            if stop:
                self.on_stop()
        socket.close(linger=0)

    def _status(self) -> JobStatus:
        step = len(self._lines)
        agents = (AgentStatus("agent-0", "node-a", 4300, "up"),)
        ranks = (
            RankStatus("data", 0, "node-a", 4301, "running", step, "waiting", "trainer.train"),
            RankStatus("trainer", 0, "node-a", 4302, "running", step, "computing", "train"),
        )
        started, committed = self._started, step - 1
        return JobStatus(self.name, self._state, 1, committed, 10, started, 4242, "host-a", agents, ranks)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs folder that the command line sees."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setenv("ROLEMESH_RUNS", str(folder))
    return folder


@pytest.fixture
def start_master(runs: Path) -> Iterator[Callable[..., MasterOutside]]:
    """Starts masters in `runs`, and ends them after the test."""
    started: list[MasterOutside] = []

    def start(name: str = "grpo", remembers: int = 1000) -> MasterOutside:
        started.append(MasterOutside(runs, name, remembers))
        return started[-1]

    yield start
    for master in started:
        master.close()
