"""The agent: one per node and job. Drives `AgentMachine` with sockets, clocks, boards and processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import zmq

from rolemesh.agent import zygote
from rolemesh.agent.devices import visible_devices
from rolemesh.agent.keeper import Keeper
from rolemesh.agent.nursery import Nursery
from rolemesh.protocol import agent as machine
from rolemesh.protocol import messages as m
from rolemesh.protocol.job import AgentConfig, RankStart
from rolemesh.rank.board import Board
from rolemesh.rank.endpoint import encode_control

__all__ = ["Agent"]

SAMPLE_MS = 50


class Agent:
    """Runs one job's ranks on one node. `deliver` may be called from any thread, everything else happens in `run`.

    `send` takes encoded `AgentToMaster` messages; it must not block.
    """

    def __init__(self, config: AgentConfig, send: Callable[[bytes], None]) -> None:
        self.config = config
        self._send = send
        self._machine = machine.AgentMachine(config.agent, config.node, config.lease_s)
        self._inbox: SimpleQueue[bytes] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keeper = Keeper(config.job.job_id, config.agent)
        self._logs = Path(config.job.run_dir, "logs")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._zmq = zmq.Context()
        self._reports = self._zmq.socket(zmq.PULL)
        self._reports.set_hwm(0)
        self._address = f"ipc://{self._keeper.tmp}/agent"
        self._reports.bind(self._address)
        self._ranks: dict[tuple[str, int], zmq.Socket[bytes]] = {}
        self._boards: dict[tuple[str, int], tuple[Board, m.RankLaunch]] = {}
        self._poller = zmq.Poller()
        self._zygote_sockets: dict[int, socket.socket] = {}
        self._nursery = Nursery(self._logs, self._keeper.mark, self._keeper.tmp, self._watch_zygote)
        self._over = False

    def deliver(self, message: bytes) -> None:
        """Take an encoded `MasterToAgent` message."""
        self._inbox.put(message)
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Serve until the job is over on this node; everything that the job had here is then gone."""
        try:
            self._poller.register(self._reports, zmq.POLLIN)
            self._poller.register(self._wake, zmq.POLLIN)
            for role, preload in self.config.preload.items():
                self._nursery.boot(preload, self.config.env[role])
            self._tell(m.AgentUp(self.config.agent, self.config.node, os.getpid(), self.config.host))
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
                self._do(machine.FromMaster(m.decode_master_to_agent(self._inbox.get_nowait())))
            except Empty:
                break
        if self._reports in ready:
            while self._reports.poll(0):
                report = m.decode_rank_to_agent(self._reports.recv())
                if isinstance(report, m.RankHello):
                    self._connect(report)
                self._do(machine.FromRank(report))
        for fd, control in list(self._zygote_sockets.items()):
            if fd in ready:
                for death in self._nursery.read(control):
                    role, rank, generation = _parse(death.key)
                    self._do(machine.RankExited(role, rank, generation, death.exit_code, death.signal, death.error))
                if control.fileno() < 0:
                    self._poller.unregister(fd)
                    del self._zygote_sockets[fd]
        if not self._over:
            self._do(machine.Sampled(self._sample()))

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
                case machine.Kill(role, rank):
                    generation = self._machine.ranks[role, rank].launch.generation
                    if not self._nursery.kill(_key(role, rank, generation)):
                        self._do(machine.RankExited(role, rank, generation, exit_code=0))
                case machine.CleanUp():
                    self._clean_up()

    def _tell(self, message: m.AgentToMaster) -> None:
        self._send(m.encode(message))

    def _fork(self, launch: m.RankLaunch) -> None:
        key = _key(launch.role, launch.rank, launch.generation)
        board = self._keeper.shm / f"board-{launch.role}-{launch.rank}"
        self._boards[launch.role, launch.rank] = (Board.create(board), launch)
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
        )
        path = self._keeper.shm / f"start-{launch.role}-{launch.rank}"
        path.write_bytes(msgspec.msgpack.encode(start))
        used = [gpu for rank in self._machine.ranks.values() for gpu in rank.launch.gpus]
        env = {**launch.env, "CUDA_VISIBLE_DEVICES": visible_devices(launch.gpus, used, os.environ)}
        log = self._logs / f"{launch.role}-{launch.rank}.log"
        request = zygote.Fork(key, str(path), str(log), env)
        self._nursery.fork(self.config.preload[launch.role], self.config.env[launch.role], request)

    def _connect(self, hello: m.RankHello) -> None:
        peer = self._zmq.socket(zmq.PUSH)
        peer.set_hwm(0)
        peer.linger = 0
        peer.connect(hello.addresses["control"])
        self._ranks[hello.role, hello.rank] = peer

    def _sample(self) -> tuple[m.RankPosition, ...]:
        positions = []
        for (role, n), (board, launch) in self._boards.items():
            known = self._machine.ranks.get((role, n))
            at = board.read()
            positions.append(
                m.RankPosition(
                    role,
                    n,
                    at.pid,
                    "alive" if known is not None and known.alive else "gone",
                    at.finished,
                    at.step,
                    at.op,
                    at.phase,
                    at.edge,
                    launch.generation,
                )
            )
        return tuple(positions)

    def _watch_zygote(self, control: socket.socket) -> None:
        self._zygote_sockets[control.fileno()] = control
        self._poller.register(control.fileno(), zmq.POLLIN)

    def _clean_up(self) -> None:
        if self._over:
            return
        self._over = True
        self._nursery.close()
        for board, _ in self._boards.values():
            board.close()
        self._zmq.destroy(linger=0)
        self._keeper.close()


def _key(role: str, rank: int, generation: int) -> str:
    return f"{role}/{rank}/{generation}"


def _parse(key: str) -> tuple[str, int, int]:
    role, rank, generation = key.split("/")
    return role, int(rank), int(generation)
