"""The master: drives `MasterMachine` with an inbox, a clock, the journal, plugins and a launcher of agents.

A restarted master finds its predecessor's journal, takes the job over under the next epoch, and continues. Its loop
never waits for a disk or a database: another thread writes a turn's records. Until they are durable the master takes no
further turn. It beats, answers clients, and repeats its last messages to agents meanwhile.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import zmq

from rolemesh.api.observer import Event, JobStatus, RunInfo, StepMetrics
from rolemesh.runs.run import CONTROL_FILE, RESULT_FILE, RUN_FILE
from rolemesh_durable.extensions.shipped import extensions_of, imported
from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.malformed import UNREADABLE, Dropped
from rolemesh_durable.master import reserve
from rolemesh_durable.master.answers import MOST_RECENT, Answers, forget_old
from rolemesh_durable.master.background_tasks import BackgroundTasks
from rolemesh_durable.master.inbox import Inbox
from rolemesh_durable.master.journal import Claimed, Journal, refuse_damaged
from rolemesh_durable.master.keepalive import Keepalive
from rolemesh_durable.master.kept import Kept, settle
from rolemesh_durable.master.plugins import MasterPlugins
from rolemesh_durable.master.publication import DRAIN_S, Publication
from rolemesh_durable.master.report import control_of, result_of, status_of
from rolemesh_durable.master.until import Until
from rolemesh_durable.master.writer import Writer
from rolemesh_durable.plugin_calls import created, exact
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import Launcher
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.shell import MasterShell
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.transitions import Transition
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.metrics.merge import LineAssembler
from rolemesh_durable.protocol.snapshot_plan import known
from rolemesh_durable.runs import PLAN_FILE, Run
from rolemesh_processes.boot import boot_id
from rolemesh_runtime.background import Background
from rolemesh_runtime.json_file import write_json
from rolemesh_runtime.plan_file import renew_plan
from rolemesh_runtime.steady import steady_time
from rolemesh_runtime.unreadable import when_readable

__all__ = ["Master"]

log = logging.getLogger("rolemesh_durable.master")

TICK_MS = 100
SERVE_MS = 20

imported("master", "shell")  # backends fork masters from a process that has this module


class Master:
    """Controls one job. Everything happens in `run`; the launcher's callbacks only enqueue.

    `socket_dir` is a private folder for the control socket. `launcher` starts agents and talks to them. `host` is the
    address at which other machines reach this one, "" if none needs to.
    """

    def __init__(self, config: MasterConfig, launcher: Launcher, socket_dir: Path, host: str = "") -> None:
        self.config = config
        self.run_dir = Path(config.job.run_dir)
        self._launcher = launcher
        self._plugins = MasterPlugins(config)
        self._inbox = Inbox()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._writer, self._files = Writer("journal", self._awake), Writer("files", self._awake)
        self._journal = Journal(
            partial(EventLog.open, config.state, self.run_dir, config.job.job_id, exact(config.store)),
            self.run_dir,
            self._writer,
            lambda: JobState.of(config),
            lambda: self._publication.told,
        )
        self._keepalive = Keepalive(launcher)
        self._tasks = BackgroundTasks(config, launcher, self._plugins.strategies, self._put)
        earlier = when_readable(Run(self.run_dir).control)
        self._earlier = earlier if earlier is not None and earlier.job_id == config.job.job_id else None
        self._started = self._earlier.started if self._earlier is not None else steady_time()
        extensions = extensions_of(config.job)
        self._extensions = [each.in_master for each in extensions]
        self._machine = MasterMachine(config, extensions=self._extensions)
        self._in_control = self._over = False
        graph = config.job.graph
        self._lines = LineAssembler(graph, config.job.world_sizes, config.origin_step)
        self._until = Until(config.until)
        self._recent: deque[StepMetrics] = deque(maxlen=MOST_RECENT)
        self._run = RunInfo(
            config.job.name, str(self.run_dir), known(config.job.steps), config.job.world_sizes,
            tuple(op.label for op in graph.ops), config.backend, config.origin, config.job.base,
        )  # fmt: skip
        self._observers = Background(created(config.observers, config.job.base))
        self._publication = Publication(self.run_dir, self._observers, self._published)
        shell = MasterShell(
            config, launcher, lambda: self._machine, self._recent, self._put, self._tasks.run, self._record,
            self._publication.stall,
        )  # fmt: skip
        parts = [part for each in extensions if (part := each.in_shell(shell)) is not None]
        self._carries = {kind: carry for part in parts for kind, carry in part.effects().items()}
        self._dropped = Dropped("the master, as if from an agent,")
        self._zmq = zmq.Context()
        self._endpoint = f"ipc://{socket_dir}/master"
        self._answers = Answers(
            self._zmq,
            self._endpoint,
            host,
            status=self._status,
            events=lambda: self._journal.recent,
            lines=lambda: self._recent,
            put=self._put,
            others={kind: answer for part in parts for kind, answer in part.requests().items()},
        )
        self._poller = zmq.Poller()
        for end in (*self._answers.sockets, self._wake):
            self._poller.register(end, zmq.POLLIN)

    def run(self) -> None:
        """Serve until the job has ended and ``result.json`` is written.

        Raises `StateError` if a newer master has taken over, if the journal is lost, or if the job should end and the
        journal cannot be written. Agents survive any error: the next master finds them.
        """
        gc.freeze()  # imported modules stay; without this, many lines would make the collector scan them
        try:
            self._launcher.open(self._received, self._lost)
            self._journal.claim(self._take_over, patient=self._earlier is not None)
            self._serve(until=lambda: self._in_control)
            self._tasks.look_around()
            while not self._over:
                self._serve_once()
                self._turn()
        finally:
            self._close()

    def _serve(self, until: Callable[[], bool], limit_s: float = float("inf")) -> None:
        """Do all work that needs no turn of the machine, until `until` or for `limit_s`."""
        deadline = time.monotonic() + limit_s
        while not until() and time.monotonic() < deadline:
            self._serve_once(SERVE_MS)

    def _serve_once(self, wait_ms: int = TICK_MS) -> None:
        ready = dict(self._poller.poll(wait_ms))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if self._in_control:
            self._launcher.beat()
        if not ready.keys().isdisjoint(self._answers.sockets):
            self._answers.serve()  # before the turn: a driver that has been waiting for an answer is alive
        self._files.collect()
        self._writer.collect()
        if self._writer.busy:
            self._keepalive.repeat(time.monotonic())

    def _take_over(self, found: Claimed) -> None:
        """Continue the work of earlier masters, now that this master owns the journal."""
        refuse_damaged(self.run_dir, self._journal.history.seq, found, self._earlier, self.config.job.job_id)
        config = msgspec.structs.replace(self.config, epoch=found.epoch, clock=boot_id())
        self._machine = MasterMachine(config, self._plugins.ladder, self._plugins.diagnosers, self._extensions)
        self._journal.history.continue_with(self._machine.state, config.clock, time.monotonic(), time.time())
        if (begun := self._journal.history.account.begun) is not None:
            self._started = begun
            published = max(found.published, self.config.origin_step)
            self._lines = LineAssembler(self.config.job.graph, self.config.job.world_sizes, published)
            self._moved(resized=bool(self._machine.state.layout.number))
            self._files.submit("until", partial(self._until.look_back, self.run_dir, published))
        self._announce(found)
        self._in_control = True
        if self._machine.state.phase == "ended":
            self._finish()
            return
        effects = self._machine.turn([e.Begin()], time.monotonic())
        self._carry_out(effects)

    def _received(self, agent: str, message: bytes) -> None:
        try:
            decoded = m.decode_agent_to_master(message)
        except UNREADABLE as error:
            self._dropped(error)
        else:
            self._put(e.FromAgent(agent, decoded))

    def _lost(self, agent: str, incarnation: int, why: str, node_lost: bool) -> None:
        self._put(e.AgentLost(agent, incarnation, why, node_lost))

    def _announce(self, found: Claimed) -> None:
        fresh = self._earlier is None
        control = control_of(self.config, self._started, self._endpoint, self._answers.remote, self._answers.keys)
        self._files.submit("the room for the result", lambda: reserve.take(self.run_dir))
        for name, content in ((RUN_FILE, self._run), (CONTROL_FILE, control)):
            path = self.run_dir / name
            self._files.submit(name, lambda path=path, content=content: write_json(path, content), patient=not fresh)  # type: ignore[misc]
        if fresh:  # before that no client knows of the job
            self._serve(until=lambda: not self._files.busy)
        self._observers.broadcast("job_started", run=self._run)
        self._publication.start()
        # Events that the last master journalled and had no time to publish.
        self._publication.add(event for event in found.stored.events if event.seq > found.told)

    def _put(self, event: e.Event) -> None:
        if isinstance(event, e.StopAsked):
            self._writer.hurry(event.reason)
        self._inbox.put(event)
        self._awake()

    def _record(self, record: Transition, then: Callable[[], object]) -> None:
        """Journal a record that the machine does not know, and call `then` when it is durable."""

        def journalled(events: list[Event]) -> None:
            self._publication.add(events)
            then()

        self._journal.append([(record.kind, record.data)], journalled)

    def _awake(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _turn(self) -> None:
        if self._writer.busy or self._over:
            return  # no effect leaves before its records are durable
        events = [*self._inbox.take(), *self._until.events(steady_time() - self._started)]
        for event in events:
            if isinstance(event, e.Published):
                self._lines.written(event.step)
        effects = self._machine.turn([*events, e.Tick()], time.monotonic())
        if not self._machine.state.settled:
            self._lines.unsettled(self._machine.now)
        self._carry_out(effects)

    def _carry_out(self, effects: list[e.Effect]) -> None:
        """Journal first, in one transaction; then release the other effects, in order."""
        records = [(effect.kind, effect.data) for effect in effects if isinstance(effect, e.JournalEntry)]
        commits = any(isinstance(effect, e.Committed) for effect in effects)
        if records or commits:
            self._journal.append(records, lambda events: self._release(events, effects), self._machine.state.committed)
        elif any(isinstance(effect, e.Publish) for effect in effects):
            # A master that was stopped for a while would write lines that exist already.
            self._journal.verify(lambda: self._release([], effects))
        else:
            self._release([], effects)

    def _release(self, events: list[Event], effects: list[e.Effect]) -> None:
        """Release the effects of a turn, which is durable now."""
        self._publication.add(events)
        if not (kinds := {event.kind for event in events}).isdisjoint(("replanned", "layout_changed")):
            self._moved(resized="layout_changed" in kinds)
        for effect in effects:
            match effect:
                case e.ToAgent(agent, incarnation, message):
                    self._keepalive.send(agent, incarnation, message, time.monotonic())
                case e.StartAgents(agents):
                    self._tasks.start(agents)
                case e.Attach(agents):
                    self._tasks.attach(agents)
                case e.KillAgent(agent, incarnation):
                    self._launcher.kill(agent, incarnation)
                case e.Places():
                    self._tasks.find_places(effect, self._machine.state)
                case e.FindOrigin():
                    self._tasks.find_origin()
                case e.FindCheckpoints(after):
                    self._tasks.find_checkpoints(after)
                case e.CommitCheckpoint():
                    self._tasks.complete(effect)
                case e.Publish(agent, metrics):
                    self._publish(agent, metrics)
                case e.End():
                    self._finish()
                case e.JournalEntry(kind="rolled_back", data=data):
                    self._lines.rolled_back(data["step"])
                case e.ExtensionEffect():
                    self._carries[type(effect)](effect)

    def _moved(self, *, resized: bool) -> None:
        """Update the files, the lines and the searches for places to the present plan; `resized`: and world sizes."""
        state = self._machine.state
        if resized:
            self._lines.resized(state.sizes)
            self._run = msgspec.structs.replace(self._run, roles=state.sizes)
            self._files.submit(RUN_FILE, partial(write_json, self.run_dir / RUN_FILE, self._run))
        now = state.plan, state.sizes, self.config.job.graph, state.layout.step
        self._files.submit(PLAN_FILE, partial(renew_plan, self.run_dir / PLAN_FILE, *now))
        self._tasks.relaid(state)
        self._lines.moved(state.homes)

    def _publish(self, agent: str, metrics: tuple[m.Metrics, ...]) -> None:
        now, committed, hold = self._machine.now, self._machine.state.committed, self._publication.full
        if lines := self._lines.add(agent, metrics, now, committed, wall=time.time(), hold=hold):
            self._recent.extend(lines)
            forget_old(self._recent)
            self._publication.add(lines)
            self._until.look(lines)

    def _published(self, step: int, held: bool) -> None:
        """Pass on the publication's progress. The publication calls this in its own thread."""
        self._put(e.Published(step, held))

    def _status(self) -> JobStatus:
        warnings = (self._writer.warning, self._files.warning, self._publication.warning, *self._observers.warnings)
        status = status_of(
            self._machine, self.config, self._started, os.getpid(), socket.gethostname(), filter(None, warnings)
        )
        if not self._in_control:
            return msgspec.structs.replace(status, state="recovering" if self._earlier is not None else "starting")
        if self._machine.state.phase == "ended" and not self._over:  # that is not journalled yet
            return msgspec.structs.replace(status, state="stopping")
        return status

    def _finish(self) -> None:
        """End the agents, tell the observers and write the result: the job has ended, and the journal says so."""
        self._over = True
        stopping = threading.Thread(target=self._launcher.stop, name="stop")
        stopping.start()
        self._serve(until=lambda: not stopping.is_alive())
        ended, lasted, found = time.time(), steady_time() - self._started, list[Kept | None]()
        self._files.submit("snapshots", partial(settle, self.run_dir, self.config, self._machine.state), found.append)
        self._serve(until=lambda: bool(found), limit_s=DRAIN_S)
        result = result_of(self._machine, self.config, self._journal.history.account, lasted, *found[:1])
        self._publication.add(self._lines.ended(self._machine.state.committed, wall=ended))
        self._publication.close()
        self._serve(until=lambda: self._publication.wait(0), limit_s=DRAIN_S)
        self._serve(until=lambda: self._publication.wait(0) or self._writer.hurried or not self._publication.patient)
        if unwritten := self._publication.give_up():
            result["message"] = "; ".join(filter(None, (result["message"], unwritten)))
        self._observers.broadcast("job_ended", result=result)
        self._observers.close()
        self._serve(until=lambda: self._observers.wait(0) or self._observers.hang(DRAIN_S), limit_s=DRAIN_S)
        for untold in self._observers.give_up():
            log.warning(untold)
        self._files.submit(RESULT_FILE, lambda: reserve.write_result(self.run_dir, result))
        self._serve(until=lambda: not self._files.busy)
        # Clients that asked meanwhile would otherwise wait until their time-out.
        self._answers.serve()

    def _close(self) -> None:
        if self._over:
            self._launcher.stop()
            (self.run_dir / CONTROL_FILE).unlink(missing_ok=True)
        self._answers.close()
        self._zmq.destroy(linger=200)
        for writer in (self._writer, self._files):
            writer.close()
        self._journal.close()
