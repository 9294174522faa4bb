"""The agent: one per node and job. Drives `AgentMachine` with sockets, clocks, status pages, processes and memory."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import zmq

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh_durable.agent import zygote
from rolemesh_durable.agent.adopting import adopt
from rolemesh_durable.agent.devices import visible_devices
from rolemesh_durable.agent.folder import look_after
from rolemesh_durable.agent.home import AgentHome
from rolemesh_durable.agent.logs import Logs
from rolemesh_durable.agent.memory import NodeMemory
from rolemesh_durable.agent.parts import Parts
from rolemesh_durable.agent.rank_channels import RankChannels
from rolemesh_durable.agent.sampling import Sampler
from rolemesh_durable.agent.status_pages import StatusPages
from rolemesh_durable.agent.zygote_pool import Death
from rolemesh_durable.extensions.shipped import extensions_of, imported
from rolemesh_durable.malformed import UNREADABLE, Dropped
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.agent.part import AgentProcess
from rolemesh_durable.protocol.agent.reporting import Identity
from rolemesh_durable.protocol.agent.start_queue import AT_ONCE
from rolemesh_durable.protocol.neighbours import Neighbours
from rolemesh_durable.protocol.starts import RankStart, for_rank
from rolemesh_durable.rank.said import Said
from rolemesh_durable.refusals import refused
from rolemesh_processes.guard import MARKER
from rolemesh_processes.reserve import Reserve
from rolemesh_processes.signals import handle_unless_ignored

__all__ = ["Agent"]

LOG = logging.getLogger(__name__)
SAMPLE_S = 0.05
"""Seconds between two looks at the ranks, if a look is fast."""
SAMPLE_SHARE = 0.05
"""Maximum share of its time that an agent of many ranks spends on looks."""
AT_WORK_S = 1.0
"""Seconds in one turn after which the agent reports that it is working."""
HANGS_S = 30.0
"""Seconds in one turn after which it stops reporting, so that it counts as hung."""

imported("agent")  # backends fork agents from a process that has this module


class Agent:
    """Runs one job's ranks on one node. Any thread may call `deliver`; everything else happens in `run`.

    `send` sends encoded `AgentToMaster` messages and must not block. `revive` is called, in a thread of its own, when
    the master has been silent for half the lease. It restarts a hung master, and returns whether there is a master to
    wait for.
    """

    def __init__(
        self, home: AgentHome, send: Callable[[bytes], None], revive: Callable[[], bool] = lambda: False
    ) -> None:
        self.config = config = home.config
        self._send = send
        self._revive = revive
        self._guard = home.guard
        self._reserve = Reserve(self._guard.shm)
        self._reserve.fill()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._memory = NodeMemory(config, self._guard.shm, lambda: os.eventfd_write(self._wake, 1))
        self._status_pages = StatusPages(self._guard.shm, self._reserve)
        self._logs = Logs(home.logs)
        self._channels = RankChannels(f"ipc://{self._guard.tmp}/agent")
        self._poller = zmq.Poller()
        self._zygote_sockets: dict[int, socket.socket] = {}
        self._zygotes = home.zygotes
        self._zygotes.watch(self._watch_zygote)
        found, living = adopt(home.rows, self._status_pages, self._memory, self._channels, self._ended)
        self._machine = AgentMachine(
            Identity(config.agent, config.node, config.incarnation, config.host, os.getpid()),
            config.job.lease_s,
            Neighbours(config.job.graph, config.job.world_sizes),
            e.Left(self._memory.timeline, found),
            max(AT_ONCE, 2 * (os.cpu_count() or 1)),
        )
        self._inbox: SimpleQueue[e.Event] = SimpleQueue()
        self._dropped = Dropped(f"agent {config.agent}")
        self._parts = Parts(self._process(home.logs), extensions_of(config.job))
        for adopted in self._parts.adopted:
            adopted(living)
        timed = config.job.graph if config.job.timed else None
        self._sampler = Sampler(self._status_pages, self._memory, self._reserve, self._parts, timed)
        self._events: deque[e.Event] = deque()
        self._next_sample, self._turn_began = 0.0, math.inf
        self._sending = threading.Lock()
        self._over = self._unseen = False
        """Unseen: something has happened whose effect on the ranks has not been examined."""

    def deliver(self, message: bytes) -> None:
        """Take an encoded `MasterToAgent` message."""
        try:
            decoded = m.decode_master_to_agent(message)
        except UNREADABLE as error:
            self._dropped(error)
        else:
            self._put(e.FromMaster(decoded))

    def leave(self) -> None:
        """Request the end of this agent; from any thread, or a signal handler."""
        self._put(e.Leave())

    def _put(self, event: e.Event) -> None:
        self._inbox.put(event)
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until the job is over on this node. Everything of the job here is then gone.

        An exception ends this agent without cleanup: its process must end with it, as if it had been killed. The ranks
        and the memory remain for the next incarnation; if none comes, the janitor removes them. Only the main thread
        handles SIGTERM.
        """
        if threading.current_thread() is threading.main_thread():
            handle_unless_ignored(signal.SIGTERM, lambda *_: self.leave())
        self._poller.register(self._channels.reports, zmq.POLLIN)
        self._poller.register(self._wake, zmq.POLLIN)
        threading.Thread(target=self._say_at_work, name="at-work", daemon=True).start()
        while not self._over:
            due = min(self._machine.report_due, self._next_sample if self._unseen else math.inf)
            self._turn(min(max(due - time.monotonic(), 0.0), SAMPLE_S))

    def _turn(self, wait_s: float) -> None:
        """Handle all pending work, after waiting at most `wait_s` for some."""
        ready = dict(self._poller.poll(math.ceil(wait_s * 1e3)))
        self._turn_began = time.monotonic()
        if self._wake in ready:
            os.eventfd_read(self._wake)
        while not self._over:
            try:
                event = self._inbox.get_nowait()
            except Empty:
                break
            self._do(event)
        if self._channels.reports in ready:
            while not self._over and (frames := self._channels.next_report()):
                self._read_rank(frames)
        for fd, control in list(self._zygote_sockets.items()):
            if fd in ready and not self._over:
                self._read_zygote(fd, control)
        if self._over:
            return
        for death in self._zygotes.turn():
            self._gone(death)
        look_after(self._guard, self._reserve, self._memory, self._machine.timeline)
        if not self._over:
            self._unseen = time.monotonic() < self._next_sample
            self._do(e.Tick() if self._unseen else self._sample())
        self._turn_began = math.inf

    def _read_rank(self, frames: list[bytes]) -> None:
        try:
            (frame,) = frames
            report = m.decode_rank_to_agent(frame)
            if isinstance(report, m.RankHello):
                self._connect(report)
        except (*UNREADABLE, zmq.ZMQError) as error:
            self._dropped(error)
        else:
            self._do(e.FromRank(report))

    def _read_zygote(self, fd: int, control: socket.socket) -> None:
        for death in self._zygotes.read(control):
            self._gone(death)
            if self._over:
                return
        if control.fileno() < 0:
            self._poller.unregister(fd)
            del self._zygote_sockets[fd]

    def _gone(self, death: Death) -> None:
        """A rank's process has ended, or could not start."""
        for gone in self._parts.gone:
            gone(death.who)
        self._do(self._ended(death))

    def _ended(self, death: Death) -> e.RankExited:
        role, rank, generation = death.who
        left, printed = self._memory.left(role, rank), "" if death.error else self._logs.tail(role, rank)
        ended = death.exit_code, death.signal, death.error, left, death.cause, printed
        kept = Said(str(self._guard.tmp), role, rank, generation).read()
        failure = next((each.failure for each in kept if isinstance(each, m.RankFailed)), None)
        return e.RankExited(role, rank, generation, *ended, failure)

    def _do(self, event: e.Event) -> None:
        """Let the machine handle an event. Events from its effects are handled afterwards."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            for effect in self._machine.handle(self._events[0], time.monotonic()):
                self._carry_out(effect)
            self._events.popleft()

    def _carry_out(self, effect: e.Effect) -> None:
        match effect:
            case e.ToMaster(message):
                self._tell(message)
            case e.ToRank(message=message):
                self._to_rank(effect.ref, message)
            case e.Fork(launch):
                self._fork(launch)
            case m.ToPart(message=message):
                self._parts.handle(message)
            case e.Fetch(launch):
                if not self._parts.fetch(launch):
                    self._put(e.Fetched(*launch.start, error="no extension fetches snapshots from other agents"))
            case e.Kill():
                if not (any(ends(effect.start) for ends in self._parts.ends) or self._zygotes.kill(effect.start)):
                    self._gone(Death(effect.start, exit_code=0))
            case e.Terminate(role=role, patience_s=patience_s) if role not in self.config.job.own_signals:
                self._status_pages.stopping(effect.ref, patience_s)
                self._zygotes.terminate(effect.start)
            case e.RankDied(role, rank):
                self._memory.died(role, rank)
            case e.Forget(timeline):
                for forget in self._parts.forget:
                    forget(timeline)
                self._memory.forget(timeline, self._reserve.make)
            case e.Relayout(layout):
                self._memory.relayout(layout)
            case e.ReviveMaster():
                threading.Thread(target=self._revive_master, name="revive", daemon=True).start()
            case e.Quit():
                os._exit(0)
            case e.CleanUp():
                self._clean_up()

    def _to_rank(self, ref: RankRef, message: m.AgentToRank) -> None:
        self._status_pages.tells(ref, message)
        self._channels.send(ref, message)

    def _revive_master(self) -> None:
        comes = False
        try:
            comes = self._revive()
        finally:
            self._put(e.MasterRevived(comes))

    def _tell(self, message: m.AgentToMaster) -> None:
        with self._sending:
            self._send(m.encode(message))

    def _say_at_work(self) -> None:
        """Report that the agent works, while a turn takes long: many ranks start, or the system is slow with a process,
        a file or a page."""
        message = m.encode(m.AtWork(self.config.agent, self.config.incarnation))
        while not self._over:
            time.sleep(AT_WORK_S)
            with self._sending, suppress(Exception):  # who cannot send is told so in its own turn
                if AT_WORK_S < time.monotonic() - self._turn_began < HANGS_S and not self._over:
                    self._send(message)

    def _fork(self, launch: m.RankLaunch) -> None:
        """Start a rank. If the system refuses a resource, the rank has failed."""
        try:
            self._start(launch)
        except (OSError, zmq.ZMQError, RolemeshError) as error:
            LOG.warning("%s cannot be started: %s", launch.start, error)
            self._gone(Death(launch.start, error=refused(error)))

    def _start(self, launch: m.RankLaunch) -> None:
        role, rank = launch.role, launch.rank
        status_page, log = self._status_pages.start(launch), self._logs.begin(role, rank)
        self._channels.drop(launch.ref)
        self._memory.started(role, rank, launch.resume, launch.generation)
        start = RankStart(
            launch=launch,
            job=for_rank(self.config.job, launch),
            node=self.config.node,
            host=self.config.host,
            shm_dir=str(self._guard.shm),
            timeline=self._memory.timeline,
            socket_dir=str(self._guard.tmp),
            tmp_dir=str(self._guard.tmp),
            agent_address=self._channels.address,
            status_page=str(status_page),
            mates=self._status_pages.mates(launch),
            parts=self._parts.starting(launch),
        )
        used = [gpu for known in self._machine.ranks.values() for gpu in known.launch.gpus]
        env = {"CUDA_VISIBLE_DEVICES": visible_devices(launch.gpus, used, os.environ)}
        fork = zygote.Fork(launch.start, msgspec.msgpack.encode(start), log, env)
        self._zygotes.fork(*self.config.job.environments[role].zygote, fork)

    def _connect(self, hello: m.RankHello) -> None:
        known = self._machine.ranks.get(hello.ref)
        if known is None or known.launch.generation != hello.generation:
            return
        try:
            self._channels.connect(hello.ref, hello.addresses["control"])
        except zmq.ZMQError as error:
            why = refused(error)
            failure = Failure("start", hello.role, hello.rank, message=why, generation=hello.generation)
            self._do(e.FromRank(m.RankFailed(failure)))

    def _sample(self) -> e.Sampled:
        advance = self._machine.advance
        covered, self._memory.pause = (advance.persisted, advance.pause) if advance is not None else (-1, -1)
        begun = time.thread_time()
        sample = self._sampler.sample(covered, self._zygotes.making, self._dropped.count)
        took = time.thread_time() - begun  # not what others have taken of the machine meanwhile
        self._next_sample = time.monotonic() + min(max(took / SAMPLE_SHARE, 0.0), 1.0)
        return sample

    def _process(self, logs: Path) -> AgentProcess:
        return AgentProcess(
            self.config, self._guard.shm, logs, {MARKER: self._guard.mark}, lambda: self._machine, self._zygotes,
            self._status_pages.pid, self._to_rank, self._put, self._memory.fail_next,
        )  # fmt: skip

    def _watch_zygote(self, control: socket.socket) -> None:
        self._zygote_sockets[control.fileno()] = control
        self._poller.register(control.fileno(), zmq.POLLIN)

    def _clean_up(self) -> None:
        if self._over:
            return
        self._over = True
        self._zygotes.close()
        self._memory.close()
        self._status_pages.close()
        for close in self._parts.close:
            close()
        self._channels.close()
        self._guard.close()
