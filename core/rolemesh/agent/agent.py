"""The agent: one per node and job. Drives `AgentMachine` with sockets, clocks, boards, processes and memory."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import zmq

from rolemesh.agent import zygote
from rolemesh.agent.devices import visible_devices
from rolemesh.agent.keeper import AgentKeeper
from rolemesh.agent.memory import NodeMemory
from rolemesh.agent.nursery import Nursery
from rolemesh.agent.stacks import StackTaker
from rolemesh.agent.turn_pages import TurnPages
from rolemesh.protocol import agent as machine
from rolemesh.protocol import messages as m
from rolemesh.protocol.job import AgentConfig, Environment, RankStart
from rolemesh.rank.board import Board, Position
from rolemesh.rank.endpoint import encode_control
from rolemesh.strangers import UNREADABLE, Dropped

__all__ = ["Agent"]

SAMPLE_MS = 50
FROZEN_AFTER_NS = 1_000_000_000
"""A rank that has been in one phase for this long is looked at: it may have been stopped by a signal."""

RankKey = tuple[str, int]


class Agent:
    """Runs one job's ranks on one node. `deliver` may be called from any thread, everything else happens in `run`.

    `send` takes encoded `AgentToMaster` messages; it must not block. `rouse` is called, in a thread of its own, when
    the master has been silent for half the lease: it should see to it that a master that hangs is started again, and
    returns whether there is one to wait for.
    """

    def __init__(
        self, config: AgentConfig, send: Callable[[bytes], None], rouse: Callable[[], bool] = lambda: False
    ) -> None:
        self.config = config
        self._send = send
        self._rouse = rouse
        self._keeper = AgentKeeper(config.job.job_id, config.agent, config.incarnation, config.lease_s)
        self._memory = NodeMemory(config, self._keeper.shm)
        self._turns = TurnPages(self._keeper.shm)
        self._machine = machine.AgentMachine(
            config.agent,
            config.node,
            config.lease_s,
            incarnation=config.incarnation,
            host=config.host,
            pid=os.getpid(),
            address=self._memory.address,
            timeline=self._memory.timeline,
        )
        self._inbox: SimpleQueue[machine.FromMaster | machine.MasterRoused] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._logs = Path(config.job.run_dir, "logs")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._zmq = zmq.Context()
        self._reports = self._zmq.socket(zmq.PULL)
        self._reports.set_hwm(0)
        self._address = f"ipc://{self._keeper.tmp}/agent"
        self._reports.bind(self._address)
        self._ranks: dict[RankKey, zmq.Socket[bytes]] = {}
        self._boards: dict[RankKey, tuple[Board, m.RankLaunch]] = {}
        self._refused = 0
        self._dropped = Dropped(f"agent {config.agent}")
        self._poller = zmq.Poller()
        self._zygote_sockets: dict[int, socket.socket] = {}
        self._nursery = Nursery(self._logs, self._keeper.mark, self._keeper.tmp, self._watch_zygote)
        self._stacks = StackTaker(self._keeper.mark)
        self._over = False

    def deliver(self, message: bytes) -> None:
        """Take an encoded `MasterToAgent` message."""
        try:
            decoded = m.decode_master_to_agent(message)
        except UNREADABLE as error:
            self._dropped(error)
        else:
            self._put(machine.FromMaster(decoded))

    def _put(self, event: machine.FromMaster | machine.MasterRoused) -> None:
        self._inbox.put(event)
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until the job is over on this node; everything that the job had here is then gone."""
        try:
            self._poller.register(self._reports, zmq.POLLIN)
            self._poller.register(self._wake, zmq.POLLIN)
            for role in self.config.warm:
                self._nursery.boot(*self._home(role))
            while not self._over:
                self._turn()
        finally:
            self._clean_up()

    def _turn(self) -> None:
        ready = dict(self._poller.poll(SAMPLE_MS))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        while not self._over:
            try:
                event = self._inbox.get_nowait()
            except Empty:
                break
            self._do(event)
            if isinstance(event, machine.FromMaster) and isinstance(event.message, m.Wire) and self._machine.wire:
                self._memory.peers(self._machine.wire.agents)
        if self._reports in ready:
            while not self._over and self._reports.poll(0):
                self._read_rank(self._reports.recv_multipart())
        for fd, control in list(self._zygote_sockets.items()):
            if fd in ready and not self._over:
                self._read_zygote(fd, control)
        if self._over:
            return
        for launch, error in self._memory.fetched():
            self._do(machine.Fetched(launch.role, launch.rank, launch.generation, error))
        for stacks in self._stacks.results():
            self._do(machine.StacksTaken(stacks))
        if not self._over:
            self._do(self._sample())

    def _read_rank(self, frames: list[bytes]) -> None:
        try:
            (frame,) = frames
            report = m.decode_rank_to_agent(frame)
            if isinstance(report, m.RankHello):
                self._connect(report)
        except (*UNREADABLE, zmq.ZMQError) as error:
            self._dropped(error)
        else:
            self._do(machine.FromRank(report))

    def _read_zygote(self, fd: int, control: socket.socket) -> None:
        for death in self._nursery.read(control):
            role, rank, generation = _parse(death.key)
            left = self._memory.ended(role, rank)
            self._turns.gone(role, rank, generation)
            ended = death.exit_code, death.signal, death.error, left, death.cause
            self._do(machine.RankExited(role, rank, generation, *ended))
            if self._over:
                return
        if control.fileno() < 0:
            self._poller.unregister(fd)
            del self._zygote_sockets[fd]

    def _do(self, event: machine.Event) -> None:
        for effect in self._machine.handle(event, time.monotonic()):
            match effect:
                case machine.ToMaster(message):
                    self._tell(message)
                case machine.ToRank(role, rank, message):
                    if (peer := self._ranks.get((role, rank))) is not None:
                        peer.send_multipart(encode_control(m.encode(message)))
                case machine.Fork(launch):
                    self._fork(launch)
                case machine.Fetch(launch):
                    self._memory.fetch(launch)
                case machine.Kill(role, rank, generation):
                    if not self._nursery.kill(_key(role, rank, generation)):
                        left = self._memory.ended(role, rank)
                        self._turns.gone(role, rank, generation)
                        self._do(machine.RankExited(role, rank, generation, exit_code=0, snapshots=left))
                case machine.RankDied(role, rank):
                    self._memory.died(role, rank)
                case machine.Forget(timeline):
                    self._memory.forget(timeline)
                case machine.TakeStacks(role, rank, generation):
                    pid = self._boards[role, rank][0].read().pid
                    self._stacks.take(pid, role, rank, generation)
                case machine.Fail():
                    self._fail(effect)
                case machine.RouseMaster():
                    threading.Thread(target=self._rouse_master, name="rouse", daemon=True).start()
                case machine.CleanUp():
                    self._clean_up()

    def _rouse_master(self) -> None:
        comes = False
        try:
            comes = self._rouse()
        finally:
            self._put(machine.MasterRoused(comes))

    def _fail(self, fault: machine.Fail) -> None:
        """Rehearsal: do what would otherwise happen by itself."""
        if fault.kind == "disk":
            self._memory.fail_next()
        elif fault.rank < 0:
            os.kill(os.getpid(), signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL)
        else:
            launch = self._machine.ranks[fault.role, fault.rank].launch
            key = _key(fault.role, fault.rank, launch.generation)
            if fault.kind == "stop":
                self._nursery.freeze(key)
            else:
                self._nursery.kill(key)

    def _tell(self, message: m.AgentToMaster) -> None:
        self._send(m.encode(message))

    def _fork(self, launch: m.RankLaunch) -> None:
        role, rank, generation = launch.role, launch.rank, launch.generation
        old = self._boards.get((role, rank))
        board = self._board_path(role, rank, generation)
        self._boards[role, rank] = (Board.create(board), launch)
        if old is not None:
            self._refused += old[0].read().refused
            old[0].close()
            self._board_path(role, rank, old[1].generation).unlink(missing_ok=True)
        if (peer := self._ranks.pop((role, rank), None)) is not None:
            peer.close(0)
        self._memory.started(role, rank, launch.resume)
        start = RankStart(
            launch=launch,
            job=self.config.job,
            node=self.config.node,
            host=self.config.host,
            shm_dir=str(self._keeper.shm),
            socket_dir=str(self._keeper.tmp),
            tmp_dir=str(self._keeper.tmp),
            agent_address=self._address,
            board=str(board),
            mates=self._mates(launch),
            turns=self._turns.starting(launch),
        )
        path = self._keeper.shm / f"start-{role}-{rank}"
        path.write_bytes(msgspec.msgpack.encode(start))
        used = [gpu for known in self._machine.ranks.values() for gpu in known.launch.gpus]
        env = {**launch.env, "CUDA_VISIBLE_DEVICES": visible_devices(launch.gpus, used, os.environ)}
        log = self._logs / f"{role}-{rank}.log"
        request = zygote.Fork(_key(role, rank, generation), str(path), str(log), env)
        self._nursery.fork(*self._home(role), request)

    def _home(self, role: str) -> tuple[tuple[str, ...], dict[str, str], Environment]:
        """What kind of zygote the role's ranks are forked from."""
        return self.config.preload[role], self.config.env[role], self.config.environments[role]

    def _mates(self, launch: m.RankLaunch) -> dict[int, str]:
        """The boards of the others in a collective group, if all of them live here."""
        if not launch.collective or launch.local_world_size < launch.world_size:
            return {}
        return {
            rank: str(self._board_path(launch.role, rank, launch.generation))
            for rank in range(launch.world_size)
            if rank != launch.rank
        }

    def _board_path(self, role: str, rank: int, generation: int) -> Path:
        return self._keeper.shm / f"board-{role}-{rank}-{generation}"

    def _connect(self, hello: m.RankHello) -> None:
        known = self._machine.ranks.get((hello.role, hello.rank))
        if known is None or known.launch.generation != hello.generation:
            return
        peer = self._zmq.socket(zmq.PUSH)
        peer.set_hwm(0)
        peer.linger = 0
        peer.connect(hello.addresses["control"])
        self._ranks[hello.role, hello.rank] = peer

    def _sample(self) -> machine.Sampled:
        now = time.monotonic_ns()
        boards = tuple(
            self._sampled(role, rank, board.read(), launch.generation, now)
            for (role, rank), (board, launch) in self._boards.items()
        )
        advance = self._machine.advance
        persisted = self._memory.persisted(advance.persisted if advance is not None else -1)
        refused = self._refused + sum(board.read().refused for board, _ in self._boards.values()) + self._memory.refused
        refused += self._dropped.count
        making = self._nursery.making
        return machine.Sampled(boards, self._memory.stored(), persisted, self._trouble(), making, refused)

    def _trouble(self) -> str:
        """What is waited for on this node, "" if nothing is."""
        if self._memory.trouble:
            return self._memory.trouble
        short = sorted(f"{role}/{rank}" for (role, rank), (board, _) in self._boards.items() if board.read().short)
        return f"/dev/shm is full: {', '.join(short)} waits for others to free some of it" if short else ""

    def _sampled(self, role: str, rank: int, at: Position, generation: int, now: int) -> machine.BoardSample:
        since = max(0, now - at.since_ns) if at.since_ns else 0
        return machine.BoardSample(
            role,
            rank,
            generation,
            at.pid,
            at.finished,
            self._memory.safe(role, rank, at.snapshot),
            at.step,
            at.op,
            at.phase,
            at.edge,
            since * 1e-9,
            since > FROZEN_AFTER_NS and _is_stopped(at.pid),
            at.busy_ns * 1e-9,
        )

    def _watch_zygote(self, control: socket.socket) -> None:
        self._zygote_sockets[control.fileno()] = control
        self._poller.register(control.fileno(), zmq.POLLIN)

    def _clean_up(self) -> None:
        if self._over:
            return
        self._over = True
        self._nursery.close()
        self._memory.close()
        self._stacks.close()
        for board, _ in self._boards.values():
            board.close()
        self._turns.close()
        self._zmq.destroy(linger=0)
        self._keeper.close()


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _key(role: str, rank: int, generation: int) -> str:
    return f"{role}/{rank}/{generation}"


def _parse(key: str) -> tuple[str, int, int]:
    role, rank, generation = key.split("/")
    return role, int(rank), int(generation)
