"""The master: drives `MasterMachine` with a queue, a clock, the journal, observers and a launcher of agents."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections import deque
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import zmq

from rolemesh.cluster import Launcher
from rolemesh.control import CONTROL_FILE, Control, Detach, Request, StopJob, Update, Watch
from rolemesh.master.context import JobContext
from rolemesh.master.observing import observers_of
from rolemesh.master.report import result_of, status_of
from rolemesh.observer import JobStatus, RunInfo, StepMetrics
from rolemesh.plugins.background import Background
from rolemesh.protocol import master as machine
from rolemesh.protocol import messages as m
from rolemesh.protocol.job import JobBundle, agent_configs
from rolemesh.protocol.merge import LineAssembler
from rolemesh.runs import RESULT_FILE, RUN_FILE, write_json

__all__ = ["Master"]

TICK_MS = 100
RECENT_LINES = 4096
DRAIN_S = 60.0
"""How long observers may take, at the job's end, for what they have not been told yet."""


class Master:
    """Controls one job. Thread-safe: `received` and `lost`; everything else happens in `run`.

    `socket_dir` is a private folder for the control socket; `launcher` starts agents and talks to them.
    """

    def __init__(self, bundle: JobBundle, launcher: Launcher, socket_dir: Path) -> None:
        self.bundle = bundle
        self.run_dir = Path(bundle.config.run_dir)
        self._launcher = launcher
        self._context = JobContext(bundle.state, self.run_dir, bundle.job_id)
        self._machine = machine.MasterMachine(msgspec.structs.replace(bundle.outline, epoch=self._context.epoch))
        self._inbox: SimpleQueue[machine.Event] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._started = time.time()
        graph = bundle.config.graph
        labels = [op.label for op in graph.ops]
        self._lines = LineAssembler(graph, bundle.config.world_sizes)
        self._recent: deque[StepMetrics] = deque(maxlen=RECENT_LINES)
        self._run = RunInfo(
            bundle.config.name,
            str(self.run_dir),
            bundle.config.steps,
            bundle.config.world_sizes,
            tuple(labels),
            bundle.backend,
        )
        self._observers = Background(observers_of(bundle.observers, bundle.config.base))
        self._zmq = zmq.Context()
        self._control = self._zmq.socket(zmq.REP)
        self._endpoint = f"ipc://{socket_dir}/master"
        self._control.bind(self._endpoint)
        self._begun = False

    def received(self, agent: str, message: bytes) -> None:
        """Take an encoded `AgentToMaster` message."""
        self._put(machine.FromAgent(agent, m.decode_agent_to_master(message)))

    def lost(self, agent: str, why: str) -> None:
        """The backend has seen that an agent is gone."""
        self._put(machine.AgentLost(agent, why))

    def run(self) -> None:
        """Serve until the job has ended and ``result.json`` is written."""
        try:
            self._announce()
            self._put(machine.Begin())
            poller = zmq.Poller()
            poller.register(self._control, zmq.POLLIN)
            poller.register(self._wake, zmq.POLLIN)
            while self._machine.phase != "ended":
                ready = dict(poller.poll(TICK_MS))
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                self._turn()
                if self._control in ready:
                    self._answer()
        finally:
            self._close()

    def _announce(self) -> None:
        write_json(self.run_dir / RUN_FILE, self._run)
        control = Control(
            self.bundle.config.name,
            self.bundle.job_id,
            self.bundle.backend,
            self._endpoint,
            os.getpid(),
            self._started,
            self.bundle.ray_address,
            "rolemesh" if self.bundle.backend == "ray" else "",
        )
        write_json(self.run_dir / CONTROL_FILE, control)
        self._observers.broadcast("job_started", run=self._run)

    def _put(self, event: machine.Event) -> None:
        self._inbox.put(event)
        os.eventfd_write(self._wake, 1)

    def _turn(self) -> None:
        now = time.monotonic()
        effects: list[machine.Effect] = []
        while True:
            try:
                effects += self._machine.handle(self._inbox.get_nowait(), now)
            except Empty:
                break
        effects += self._machine.handle(machine.Tick(), now)
        self._carry_out(effects)

    def _carry_out(self, effects: list[machine.Effect]) -> None:
        """Journal first, in one transaction; then let the rest out, in order."""
        records = [(effect.kind, effect.data) for effect in effects if isinstance(effect, machine.Record)]
        for event in self._context.append(records):
            self._observers.broadcast("event", event=event)
        for effect in effects:
            match effect:
                case machine.ToAgent(agent, message):
                    self._launcher.send(agent, m.encode(message))
                case machine.StartAgents():
                    threading.Thread(target=self._start_agents, name="start-agents", daemon=True).start()
                case machine.Publish(metrics):
                    self._publish(metrics)
                case machine.End():
                    self._finish()
                case machine.Record():
                    pass

    def _start_agents(self) -> None:
        try:
            configs = {config.agent: msgspec.msgpack.encode(config) for config in agent_configs(self.bundle)}
            self._launcher.start(self.bundle.outline.places, configs, self.received, self.lost)
        except Exception as error:
            self._put(machine.StartFailed(str(error) or traceback.format_exc()))

    def _publish(self, metrics: tuple[m.Metrics, ...]) -> None:
        lines = tuple(self._lines.add(metrics, time.time()))
        if lines:
            self._recent.extend(lines)
            self._observers.broadcast("steps_finished", metrics=lines)

    def _answer_all(self) -> None:
        while self._control.poll(0):
            self._answer()

    def _answer(self) -> None:
        try:
            request = msgspec.msgpack.decode(self._control.recv(), type=Request)
        except msgspec.ValidationError:
            self._control.send(b"")
            return
        update = Update(self._status())
        match request:
            case Watch(event=event, step=step, owner=owner):
                if owner:
                    self._put(machine.OwnerSeen())
                lines = tuple(line for line in self._recent if line.step > step)
                update = Update(self._status(), self._context.since(event), lines)
            case StopJob(reason=reason):
                self._put(machine.StopAsked(reason))
            case Detach():
                self._put(machine.Disown())
        self._control.send(msgspec.msgpack.encode(update))

    def _status(self) -> JobStatus:
        return status_of(self._machine, self.bundle, self._started, os.getpid(), socket.gethostname())

    def _finish(self) -> None:
        self._launcher.stop()
        result = result_of(self._machine, self.bundle, time.time() - self._started)
        self._observers.broadcast("job_ended", result=result)
        self._observers.close()
        deadline = time.monotonic() + DRAIN_S
        while not self._observers.wait(TICK_MS / 1000) and time.monotonic() < deadline:
            self._answer_all()
        write_json(self.run_dir / RESULT_FILE, result)
        # Whoever asked while the agents were being ended would wait for an answer until its time-out.
        self._answer_all()

    def _close(self) -> None:
        self._launcher.stop()
        (self.run_dir / CONTROL_FILE).unlink(missing_ok=True)
        self._zmq.destroy(linger=200)
        self._context.close()
