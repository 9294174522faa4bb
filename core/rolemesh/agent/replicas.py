"""Copies of snapshots in another node's memory: each agent offers its ranks' newest ones to the next agent.

The agents' names, sorted, make a ring. Who is offered an image draws it, piece by piece, from who has it, as does who
fetches one before it starts a lost rank. Requests are repeated and answers are checked, so nothing depends on a message
that is lost. CurveZMQ with the job's keys; one thread, which owns every socket.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from rolemesh.agent.replica_draw import DONE, IMAGE, OFFER, PIECE, Draw
from rolemesh.agent.replica_store import Image, ReplicaStore, describe
from rolemesh.handshakes import Handshakes
from rolemesh.protocol.job import AgentConfig
from rolemesh.protocol.messages import Stored
from rolemesh.snapshots.memory import MemorySnapshots

__all__ = ["Replicas"]

_POLL_MS = 200
_REPEAT_S = 1.0
_GIVE_UP_S = 10.0
_HOLDER = "replicas"

RankKey: TypeAlias = tuple[str, int]


class _Offer:
    """A snapshot that the next agent has been offered, held until it has drawn it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.said = 0.0
        self.heard = time.monotonic()


class Replicas:
    """One agent's end of the ring. Its methods are for the agent's loop and return at once."""

    def __init__(self, config: AgentConfig, shm: Path) -> None:
        self._name, self._keys, self._shm = config.agent, config.job.keys, shm
        self._store = ReplicaStore(shm)
        self._lock = threading.Lock()
        self._held = self._store.held()
        self._replicated: dict[RankKey, int] = {}
        self._ended: list[tuple[str, int, str]] = []
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._next = ""
        self._newest: dict[RankKey, int] = {}
        self._offers: dict[RankKey, _Offer] = {}
        self._described: dict[RankKey, tuple[Image, dict[str, Path]]] = {}
        self._draws: dict[RankKey, Draw] = {}
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._over = False
        self._context = zmq.Context()
        self._gate = ThreadAuthenticator(self._context)
        self._gate.start()
        self._gate.configure_curve_callback("rolemesh", self)
        self._server: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._server.linger = 0
        self._server.curve_server = True
        self._server.curve_secretkey = self._keys.server_secret.encode()
        self._server.curve_publickey = self._keys.server_public.encode()
        self._server.zap_domain = b"rolemesh"
        self._handshakes = Handshakes(self._server)
        self.refused = 0
        """Connections from who had not the job's key."""
        self.address = f"tcp://{config.host}:{self._server.bind_to_random_port(f'tcp://{config.host}')}"
        """Where other agents reach this one."""
        self._thread = threading.Thread(target=self._serve, name="rolemesh-replicas", daemon=True)
        self._thread.start()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether who has this public key (z85) is let in; called by the authenticator."""
        return key == self._keys.client_public.encode()

    def peers(self, agents: dict[str, str]) -> None:
        """All agents' addresses by name; the next one by name gets the copies."""
        names = sorted(agents)
        found = ""
        if len(names) > 1 and self._name in agents:
            found = agents[names[(names.index(self._name) + 1) % len(names)]]
        self._do(lambda: self._connect(found))

    def offer(self, role: str, rank: int, step: int) -> None:
        """The rank's newest snapshot is that of `step`; of several that wait, only the newest is copied."""
        if self._replicated.get((role, rank), -1) < step:
            self._do(lambda: self._offered(role, rank, step))

    def replicated(self, role: str, rank: int) -> int:
        """The newest step of which another agent has had a copy; -1: none."""
        return self._replicated.get((role, rank), -1)

    def held(self) -> list[Stored]:
        """What this agent keeps for others."""
        with self._lock:
            return list(self._held)

    def fetch(self, address: str, role: str, rank: int, step: int) -> None:
        """Bring the rank's snapshot of `step` from the agent at `address` (which may be this one) into this node's
        memory, as if the rank had written it here. `fetched` tells when that has ended."""
        self._do(lambda: self._fetch(address, role, rank, step))

    def fetched(self) -> list[tuple[str, int, str]]:
        """The fetches that have ended since the last call: role, rank, and "" or what went wrong."""
        with self._lock:
            found, self._ended = self._ended, []
        return found

    def clear(self) -> None:
        """Everything in memory is void: forget what is kept and what was copied."""
        self._replicated.clear()
        self._do(self._forget)

    def close(self) -> None:
        """End the thread. What is kept stays in its files."""
        self._do(self._finish)
        self._thread.join()
        self._gate.stop()
        self._context.destroy(linger=0)
        os.close(self._wake)

    def _do(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)
        os.eventfd_write(self._wake, 1)

    # -------------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        while not self._over:
            poller = zmq.Poller()
            for each in (self._server, self._wake, *self._sockets.values()):
                poller.register(each, zmq.POLLIN)
            ready = dict(poller.poll(_POLL_MS))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            with contextlib.suppress(Empty):
                while not self._over:
                    self._tasks.get_nowait()()
            if self._server in ready:
                self._answer()
            for socket in list(self._sockets.values()):
                if socket in ready:
                    self._hear(socket)
            self._repeat()
            self.refused = self._handshakes.failed()
        self._handshakes.close()
        self._server.close(linger=0)
        for socket in self._sockets.values():
            socket.close(linger=0)

    def _finish(self) -> None:
        self._over = True
        for key in list(self._offers):
            self._end_offer(key)

    def _connect(self, address: str) -> None:
        if address != self._next:
            self._next = address
            self._replicated.clear()  # what the other one had may be lost with it
            for key in list(self._offers):
                self._end_offer(key)

    def _offered(self, role: str, rank: int, step: int) -> None:
        self._newest[role, rank] = step

    def _forget(self) -> None:
        for key in list(self._offers):
            self._end_offer(key)
        self._newest.clear()
        for draw in self._draws.values():
            draw.close()
        self._draws.clear()
        self._described.clear()
        self._store.clear()
        self._note()

    def _note(self) -> None:
        with self._lock:
            self._held = self._store.held()

    # ------------------------------------------------------------------------------------------- who has an image

    def _repeat(self) -> None:
        """Offer what is new, say again what was not answered, and give up what never is."""
        now = time.monotonic()
        for key, offer in list(self._offers.items()):
            if now - offer.heard > _GIVE_UP_S:
                self._end_offer(key)
        for key, step in self._newest.items() if self._next else ():
            if key not in self._offers and step > self._replicated.get(key, -1):
                self._begin_offer(key, step)
        for (role, rank), offer in self._offers.items():
            if now - offer.said > _REPEAT_S:
                offer.said = now
                self._send(self._next, OFFER, (role, rank, offer.step, self.address))
        for key, draw in list(self._draws.items()):
            if now - draw.heard > _GIVE_UP_S:
                self._end_draw(key, f"the agent at {draw.address} does not answer")
            elif now - draw.said > _REPEAT_S:
                draw.repeat()

    def _begin_offer(self, key: RankKey, step: int) -> None:
        memory = MemorySnapshots(self._shm, *key)
        try:
            for old in memory.steps():
                memory.release(old, _HOLDER)  # an earlier incarnation may have died holding it
            self._described.pop(key, None)
            if memory.hold(step, _HOLDER):
                self._offers[key] = _Offer(step)
        finally:
            memory.close()

    def _end_offer(self, key: RankKey) -> None:
        offer = self._offers.pop(key)
        self._described.pop(key, None)
        memory = MemorySnapshots(self._shm, *key)
        memory.release(offer.step, _HOLDER)
        memory.close()

    def _answer(self) -> None:
        while True:
            try:
                identity, kind, body = self._server.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            with contextlib.suppress(msgspec.MsgspecError, OSError):
                self._answer_one(identity, kind, body)

    def _answer_one(self, identity: bytes, kind: bytes, body: bytes) -> None:
        if kind == OFFER:
            role, rank, step, address = msgspec.msgpack.decode(body, type=tuple[str, int, int, str])
            self._be_offered(role, rank, step, address)
        elif kind == DONE:
            role, rank, step = msgspec.msgpack.decode(body, type=tuple[str, int, int])
            self._replicated[role, rank] = max(step, self._replicated.get((role, rank), -1))
            if (role, rank) in self._offers and self._offers[role, rank].step <= step:
                self._end_offer((role, rank))
        elif kind == IMAGE:
            role, rank, step = msgspec.msgpack.decode(body, type=tuple[str, int, int])
            image = self._image(role, rank, step)
            self._server.send_multipart([identity, IMAGE, body, msgspec.msgpack.encode(image)])
        elif kind == PIECE:
            role, rank, step, name, start, size = msgspec.msgpack.decode(body, type=tuple[str, int, int, str, int, int])
            image = self._image(role, rank, step)
            data = b""
            if image is not None and any(part.name == name for part in image.parts):
                data = _piece(self._path(image, name), start, size)
                if len(data) < size and (role, rank) in self._offers:
                    self._end_offer((role, rank))  # freed meanwhile: the next one is described anew
            self._server.send_multipart([identity, PIECE, body, data], copy=False)

    def _image(self, role: str, rank: int, step: int) -> Image | None:
        """A kept image, or one of a snapshot in this node's own memory."""
        key = role, rank
        if key in self._offers and self._offers[key].step == step:
            self._offers[key].heard = time.monotonic()
        else:
            kept = self._store.image(role, rank, step)
            if kept is not None:
                return kept
        known = self._described.get(key)
        if known is None or known[0].step != step:
            known = describe(self._shm, role, rank, step)
            if known is None:
                return None
            self._described[key] = known
        return known[0]

    def _path(self, image: Image, name: str) -> Path:
        known = self._described.get(image.name)
        return known[1][name] if known is not None and known[0] is image else self._store.path(image, name)

    # ------------------------------------------------------------------------------------------- who wants an image

    def _be_offered(self, role: str, rank: int, step: int, address: str) -> None:
        draw = self._draws.get((role, rank))
        if self._store.image(role, rank, step) is not None:
            self._send(address, DONE, (role, rank, step))
        elif draw is None or (draw.step < step and not draw.install):
            if draw is not None:
                draw.close()
            self._begin_draw(address, role, rank, step, install=False)

    def _fetch(self, address: str, role: str, rank: int, step: int) -> None:
        draw = self._draws.pop((role, rank), None)
        if draw is not None:
            draw.close()
        image = self._store.image(role, rank, step)
        if image is not None:
            self._install(image)
        elif address == self.address:
            self._tell(role, rank, f"this agent has no copy of {role}/{rank} at step {step}")
        else:
            self._begin_draw(address, role, rank, step, install=True)

    def _begin_draw(self, address: str, role: str, rank: int, step: int, *, install: bool) -> None:
        def send(kind: bytes, body: Any) -> None:
            self._send(address, kind, body)

        draw = Draw(self._store, send, address, role, rank, step, install=install)
        self._draws[role, rank] = draw
        draw.repeat()

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                kind, body, data = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                continue
            role, rank, step = msgspec.msgpack.decode(body)[:3]
            draw = self._draws.get((role, rank))
            if draw is None or draw.step != step:
                continue
            try:
                problem = draw.hear(kind, body, data)
            except (OSError, msgspec.MsgspecError) as error:
                problem = str(error)
            if problem:
                self._end_draw((role, rank), problem)
            elif draw.complete:
                self._drawn(draw)

    def _drawn(self, draw: Draw) -> None:
        image = draw.finish()
        del self._draws[image.name]
        if draw.install:
            self._install(image)
            self._replicated[image.name] = max(image.step, self._replicated.get(image.name, -1))
        else:
            self._send(draw.address, DONE, (image.role, image.rank, image.step))
        self._note()

    def _install(self, image: Image) -> None:
        try:
            self._store.install(image)
        except OSError as error:
            self._tell(image.role, image.rank, f"the copy cannot be put in place: {error}")
        else:
            self._tell(image.role, image.rank, "")
        self._note()

    def _end_draw(self, key: RankKey, problem: str) -> None:
        draw = self._draws.pop(key)
        draw.close()
        if draw.install:
            self._tell(*key, problem)

    def _tell(self, role: str, rank: int, problem: str) -> None:
        with self._lock:
            self._ended.append((role, rank, problem))

    def _send(self, address: str, kind: bytes, body: Any) -> None:
        socket = self._sockets.get(address)
        if socket is None:
            socket = self._sockets[address] = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.curve_serverkey = self._keys.server_public.encode()
            socket.curve_publickey = self._keys.client_public.encode()
            socket.curve_secretkey = self._keys.client_secret.encode()
            socket.connect(address)
        with contextlib.suppress(zmq.Again):
            socket.send_multipart([kind, msgspec.msgpack.encode(body)], zmq.NOBLOCK)


def _piece(path: Path, start: int, size: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, size, start)
    finally:
        os.close(fd)
