"""One agent's end of the ring of copies: `Replication` with a thread and CurveZMQ sockets, locked by the job's keys."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import zmq

from rolemesh.api.rank_ref import RankRef
from rolemesh_dataplane.auth_monitor import Handshakes
from rolemesh_dataplane.curve import Gate, connect, listen
from rolemesh_durable.extensions.replicas.frames import PAUSE_S
from rolemesh_durable.extensions.replicas.replication import Replication
from rolemesh_durable.protocol.messages import Stored
from rolemesh_durable.protocol.starts import AgentConfig

__all__ = ["Replicas"]

log = logging.getLogger("rolemesh_durable.agent")

_POLL_MS = 200
REQUEST_BYTES = 1 << 16
"""Maximum size of another agent's request in bytes. A peer without the key cannot make this one hold more."""


class Replicas:
    """One agent's end of the ring. Its methods are for the agent's loop and return at once.

    One thread owns every socket, and no failure ends it.
    """

    def __init__(self, config: AgentConfig, shm: Path, timeline: int = 0) -> None:
        self._keys = config.job.keys
        self._lock = threading.Lock()
        self._ended: list[tuple[str, int, str]] = []
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._over = False
        self._context = zmq.Context()
        self._gate = Gate(self._context, self._keys.client_public)
        self._server: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._server.linger, self._server.maxmsgsize = 0, REQUEST_BYTES
        self._handshakes = Handshakes(self._server)
        self.refused = 0
        """Number of connections from peers without the job's key."""
        self.address = listen(self._server, config.host, self._keys)
        """The address at which other agents reach this one."""
        self._logic = Replication(shm, self.address, self._send, timeline)
        self._timeline = timeline
        self._lives: dict[RankRef, tuple[int, int]] = {}
        self._held = self._logic.held
        self._warnings = ("", "")
        self._thread = threading.Thread(target=self._serve, name="rolemesh-replicas", daemon=True)
        self._thread.start()

    @property
    def warning(self) -> str:
        """The problems with copies, here and at the next agent; "" once they are over."""
        return "; ".join(filter(None, self._warnings))

    def copies_to(self, address: str) -> None:
        """Copy to the agent at `address`; "" for none."""
        self._do(lambda: self._logic.offers.connect(address))

    def offer(self, role: str, rank: int, step: int) -> None:
        """Note that the rank's newest snapshot is that of `step`. Of several that wait, only the newest is copied."""
        if self.replicated(role, rank) < step:
            self._do(lambda: self._logic.offers.offer(role, rank, step))

    def replicated(self, role: str, rank: int) -> int:
        """Return the newest step of which another agent has a copy; -1: none."""
        return self._logic.offers.copied(role, rank, self._timeline, *self._lives.get(RankRef(role, rank), (0, -1)))

    def held(self) -> list[Stored]:
        """Return the images that this agent keeps for others."""
        with self._lock:
            return list(self._held)

    def restarted(self, role: str, rank: int, step: int, generation: int, *, collective: bool = False) -> None:
        """Note that a rank starts again after `step`, as `generation`: copies of its later steps do not count."""
        self._lives[RankRef(role, rank)] = generation, step
        self._do(lambda: self._logic.offers.restarted(role, rank, step, generation, collective=collective))

    def gone(self, role: str, rank: int) -> None:
        """Note that a rank has no process here any more."""
        self._do(lambda: self._logic.offers.gone(role, rank))

    def fetch(self, address: str, role: str, rank: int, step: int) -> None:
        """Bring the rank's snapshot of `step` from the agent at `address` (maybe this one) into this node's memory.

        It is then as if the rank had written it here. `fetched` reports the end of the fetch, also if it has failed.
        """
        self._do(lambda: self._logic.fetch(address, role, rank, step, time.monotonic()))

    def fetched(self) -> list[tuple[str, int, str]]:
        """Return the fetches that have ended since the last call: role, rank, and "" or the error."""
        with self._lock:
            found, self._ended = self._ended, []
        return found

    def clear(self, timeline: int) -> None:
        """Forget all kept images and copies, because everything in memory is outdated. New ones are of `timeline`."""
        self._timeline = timeline
        self._do(lambda: self._logic.forget(timeline))

    def close(self) -> None:
        """End the thread. The kept images stay in their files."""
        self._do(self._finish)
        self._thread.join()
        self._gate.close()
        self._context.destroy(linger=0)
        os.close(self._wake)

    def _do(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)
        os.eventfd_write(self._wake, 1)

    # -------------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        stumbled = 0.0
        while not self._over:
            warning = ""
            try:
                self._turn()
            except Exception as error:
                log.exception("copying snapshots goes on after an error")
                warning, stumbled = (
                    f"copies of snapshots are delayed: {type(error).__name__}: {error}",
                    time.monotonic(),
                )
            if warning or time.monotonic() > stumbled + PAUSE_S:
                self._warnings = (warning, self._logic.warning)
            if warning:
                time.sleep(PAUSE_S / 10)
        self._handshakes.close()
        self._server.close(linger=0)
        for socket in self._sockets.values():
            socket.close(linger=0)

    def _turn(self) -> None:
        poller = zmq.Poller()
        for each in (self._server, self._wake, *self._sockets.values()):
            poller.register(each, zmq.POLLIN)
        ready = dict(poller.poll(_POLL_MS))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        with contextlib.suppress(Empty):
            while not self._over:
                self._tasks.get_nowait()()
        if self._over:
            return
        if self._server in ready:
            self._answer()
        for socket in list(self._sockets.values()):
            if socket in ready:
                self._hear(socket)
        self._logic.tick(time.monotonic())
        self.refused = self._handshakes.failed()
        with self._lock:
            self._held = self._logic.held
            self._ended += self._logic.ended
            self._logic.ended.clear()

    def _finish(self) -> None:
        self._over = True
        self._logic.offers.close()

    def _answer(self) -> None:
        while True:
            try:
                identity, kind, body = self._server.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            answer = self._logic.asked(kind, body, time.monotonic())
            if answer is not None:
                self._server.send_multipart([identity, kind, body, answer], copy=False)

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                kind, body, data = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            self._logic.answered(kind, body, data, time.monotonic())

    def _send(self, address: str, kind: bytes, body: Any) -> None:
        socket = self._sockets.get(address)
        if socket is None:
            socket = self._sockets[address] = self._context.socket(zmq.DEALER)
            socket.linger = 0
            connect(socket, address, self._keys)
        with contextlib.suppress(zmq.Again):
            socket.send_multipart([kind, msgspec.msgpack.encode(body)], zmq.NOBLOCK)
