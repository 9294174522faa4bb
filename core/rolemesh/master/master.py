"""The master: drives `MasterMachine` with a queue, a clock, the journal, plugins and a launcher of agents.

A master that is started again finds its predecessor's journal, takes the job over under the next epoch, and goes on.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import zmq

from rolemesh import faults
from rolemesh.cluster import Launcher
from rolemesh.control import CONTROL_FILE, Control
from rolemesh.errors import StateError
from rolemesh.jsonl import last_line
from rolemesh.master.answers import Answers
from rolemesh.master.clock import boot
from rolemesh.master.context import JobContext
from rolemesh.master.errands import Errands
from rolemesh.master.plugins import MasterPlugins, created
from rolemesh.master.publication import DRAIN_S, Publication
from rolemesh.master.report import result_of, status_of
from rolemesh.observer import Event, JobStatus, RunInfo, StepMetrics
from rolemesh.plugins.background import Background
from rolemesh.protocol import master as machine
from rolemesh.protocol import messages as m
from rolemesh.protocol.job import JobBundle
from rolemesh.protocol.merge import LineAssembler
from rolemesh.runs import EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE, Run, write_json
from rolemesh.state import JournalDamagedError
from rolemesh.strangers import UNREADABLE, Dropped

__all__ = ["Master"]

log = logging.getLogger("rolemesh.master")

TICK_MS = 100
RECENT_LINES = 4096


class Master:
    """Controls one job. Everything happens in `run`; the launcher's callbacks only enqueue.

    `socket_dir` is a private folder for the control socket; `launcher` starts agents and talks to them.
    """

    def __init__(self, bundle: JobBundle, launcher: Launcher, socket_dir: Path) -> None:
        self.bundle = bundle
        self.run_dir = Path(bundle.config.run_dir)
        self._launcher = launcher
        self._context = JobContext(bundle.state, self.run_dir, bundle.job_id)
        plugins = MasterPlugins(bundle)
        outline = msgspec.structs.replace(bundle.outline, epoch=self._context.epoch, clock=boot())
        self._machine = machine.MasterMachine(outline, plugins.ladder, plugins.diagnosers)
        machine.replay(self._machine, self._context.history, time.monotonic(), time.time())
        self._inbox: SimpleQueue[machine.Event] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._errands = Errands(bundle, launcher, plugins.strategies, self._put)
        self._started = self._context.history[0].time if self._context.history else time.time()
        graph = bundle.config.graph
        written = int(last_line(self.run_dir / METRICS_FILE).get("step", -1)) if self._context.history else -1
        self._lines = LineAssembler(graph, bundle.config.world_sizes, max(written, bundle.outline.origin_step))
        self._recent: deque[StepMetrics] = deque(maxlen=RECENT_LINES)
        self._run = RunInfo(
            bundle.config.name,
            str(self.run_dir),
            bundle.config.steps,
            bundle.config.world_sizes,
            tuple(op.label for op in graph.ops),
            bundle.backend,
            bundle.outline.origin,
        )
        self._observers = Background(created(bundle.observers, bundle.config.base))
        self._publication = Publication(self.run_dir, self._observers, self._published)
        self._dropped = Dropped("the master, as if from an agent,")
        self._zmq = zmq.Context()
        self._endpoint = f"ipc://{socket_dir}/master"
        self._answers = Answers(
            self._zmq,
            self._endpoint,
            status=self._status,
            events=lambda: self._context.recent,
            lines=lambda: self._recent,
            put=self._put,
            inject=self._inject,
        )

    def run(self) -> None:
        """Serve until the job has ended and ``result.json`` is written.

        Raises `StateError` if a newer master has taken over, or the journal is lost. Whatever is raised, agents are
        left alone: the next master finds them.
        """
        try:
            self._announce()
            self._launcher.open(self._received, self._lost)
            if self._over:
                self._finish()
                return
            self._put(machine.Begin())
            poller = zmq.Poller()
            poller.register(self._answers.socket, zmq.POLLIN)
            poller.register(self._wake, zmq.POLLIN)
            while not self._over:
                ready = dict(poller.poll(TICK_MS))
                if self._wake in ready:
                    os.eventfd_read(self._wake)
                self._launcher.beat()
                if self._answers.socket in ready:
                    self._answers.serve()  # before the turn: a driver that has been waiting for an answer is alive
                self._turn()
        finally:
            self._close()

    @property
    def _over(self) -> bool:
        return self._machine.phase == "ended"

    def _received(self, agent: str, message: bytes) -> None:
        try:
            decoded = m.decode_agent_to_master(message)
        except UNREADABLE as error:
            self._dropped(error)
        else:
            self._put(machine.FromAgent(agent, decoded))

    def _lost(self, agent: str, incarnation: int, why: str, node_lost: bool) -> None:
        self._put(machine.AgentLost(agent, incarnation, why, node_lost))

    def _check_journal(self) -> None:
        """Raise `JournalDamagedError` if earlier masters have journalled more than is there."""
        newest = self._context.history[-1].seq if self._context.history else 0
        told = int(last_line(self.run_dir / EVENTS_FILE).get("seq", 0))
        earlier = Run(self.run_dir).control()
        if told > newest:
            what = f"the journal ends with event {newest}, but event {told} has been told already"
        elif self._context.epoch == 1 and earlier is not None and earlier.job_id == self.bundle.job_id:
            what = f"the master with pid {earlier.pid} had a journal, and it is gone"
        elif earlier is not None and earlier.job_id != self.bundle.job_id:
            what = f"another job ({earlier.job_id}, master {earlier.pid}) has taken the folder"
        else:
            return
        raise JournalDamagedError(
            what,
            where=str(self.run_dir / EVENTS_FILE),
            remedy="restore the database from a backup, or start the job again with --resume",
        )

    def _announce(self) -> None:
        self._check_journal()
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
        self._publication.start()
        if self._context.history:
            # What the last master journalled and then had no time to tell anybody.
            newest = self._context.history[-1].seq
            told = int(last_line(self.run_dir / EVENTS_FILE).get("seq", newest))
            self._publication.add(event for event in self._context.history if event.seq > told)

    def _put(self, event: machine.Event) -> None:
        self._inbox.put(event)
        os.eventfd_write(self._wake, 1)

    def _turn(self) -> None:
        if self._publication.full:
            return  # whatever is decided now would have to wait in memory for the disk
        now = time.monotonic()
        events: list[machine.Event] = []
        with suppress(Empty):
            while True:
                events.append(self._inbox.get_nowait())
        effects = self._machine.turn([*events, machine.Tick()], now)
        if self._machine.coordinator.busy:
            self._lines.unsettled(self._machine.now)
        self._carry_out(effects)

    def _carry_out(self, effects: list[machine.Effect]) -> None:
        """Journal first, in one transaction; then let the rest out, in order."""
        records = [(effect.kind, effect.data) for effect in effects if isinstance(effect, machine.Record)]
        self._publication.add(self._context.append(records))
        if any(kind == "replanned" for kind, _ in records):
            self._lines.moved(rank.agent for rank in self._machine.ranks.values())
        for effect in effects:
            match effect:
                case machine.ToAgent(agent, incarnation, message):
                    self._launcher.send(agent, incarnation, m.encode(message))
                case machine.StartAgents(agents):
                    self._errands.start(agents)
                case machine.Attach(agents):
                    self._errands.attach(agents)
                case machine.KillAgent(agent, incarnation):
                    self._launcher.kill(agent, incarnation)
                case machine.Replan(lost):
                    homes = {key: record.agent for key, record in self._machine.ranks.items()}
                    alive = {
                        name: record.place.node
                        for name, record in self._machine.agents.items()
                        if record.state == "up" and record.place.node not in lost
                    }
                    self._errands.replan(lost, homes, alive)
                case machine.FindOrigin():
                    self._errands.find_origin()
                case machine.FindSets(after):
                    self._errands.find_sets(after)
                case machine.CompleteSet():
                    self._errands.complete(effect)
                case machine.Publish(agent, metrics):
                    self._publish(agent, metrics)
                case machine.End():
                    self._finish()
                case machine.Record():
                    pass

    def _publish(self, agent: str, metrics: tuple[m.Metrics, ...]) -> None:
        lines = tuple(self._lines.add(agent, metrics, self._machine.now, self._machine.committed, wall=time.time()))
        if lines:
            self._context.verify()  # a master that was stopped for a while would write lines that are there already
            self._recent.extend(lines)
            self._publication.add(lines)

    def _published(self, step: int, held: bool) -> None:
        """Of the writer's thread."""
        self._put(machine.Published(step, held))

    def _inject(self, kind: m.FaultKind, target: str) -> str:
        """Rehearsal: the fault is journalled before it happens, so that the trail tells it from others.

        Says why not, "" if it happens.
        """
        what, _, name = target.partition(":")
        if target == "master":
            self._carry_out([machine.Record("injected", {"kind": kind, "target": target})])
            match kind:
                case "full":
                    faults.fill([os.getpid()])
                case "clock":
                    faults.step_clock()
                case "stall":
                    self._publication.stall(faults.LASTING_S)
                case _:
                    os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        elif what == "node":
            self._carry_out([machine.Record("injected", {"kind": kind, "target": target})])
            self._launcher.lose(name)
        elif what == "agent":
            if why := self._machine.why_not(name, "", -1):
                return why
            self._put(machine.InjectAsked(kind, agent=name))
        else:
            role, _, rank = target.rpartition("/")
            if why := self._machine.why_not("", role, int(rank)):
                return why
            self._put(machine.InjectAsked(kind, role=role, rank=int(rank)))
        return ""

    def _status(self) -> JobStatus:
        warnings = filter(None, (self._publication.warning, *self._observers.warnings))
        return status_of(self._machine, self.bundle, self._started, os.getpid(), socket.gethostname(), warnings)

    def _finish(self) -> None:
        self._launcher.stop()
        ended = time.time()
        result = result_of(self._machine, self.bundle, self._journal(), ended - self._started)
        self._publication.close()
        self._serve_until(lambda: self._publication.wait(TICK_MS / 1000))
        if unwritten := self._publication.give_up():
            log.warning(unwritten)
        self._observers.broadcast("job_ended", result=result)
        self._observers.close()
        self._serve_until(lambda: self._observers.wait(TICK_MS / 1000) or self._observers.hang(DRAIN_S))
        for untold in self._observers.give_up():
            log.warning(untold)
        write_json(self.run_dir / RESULT_FILE, result)
        # Whoever asked while the agents were being ended would wait for an answer until its time-out.
        self._answers.serve()

    def _serve_until(self, done: Callable[[], bool]) -> None:
        """Beat and answer until `done`, within reason."""
        deadline = time.monotonic() + DRAIN_S
        while not done() and time.monotonic() < deadline:
            self._launcher.beat()
            self._answers.serve()

    def _journal(self) -> list[Event]:
        try:
            return self._context.all()
        except StateError:
            return []  # the result matters more than the account of what was lost

    def _close(self) -> None:
        if self._over:
            self._launcher.stop()
            (self.run_dir / CONTROL_FILE).unlink(missing_ok=True)
        self._zmq.destroy(linger=200)
        self._context.close()
