"""ZeroMQ over TCP with the job's keys, like `tcp`; a large value leaves a node once, and only what has changed of it.

One thread per rank drives both ends: `Producing`, what the rank sends, and `Receiving`, what it receives and relays.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from secrets import randbits
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

import zmq
from pydantic import BaseModel, ConfigDict, Field
from zmq.utils.monitor import recv_monitor_message

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_dataplane.auth_monitor import Handshakes
from rolemesh_dataplane.curve import Gate, connect, listen
from rolemesh_dataplane.payload import HEAD
from rolemesh_dataplane.pieces import CUT, LIMIT, cut, joined, rest
from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport, TransportError
from rolemesh_delta.messages import (
    BUFFERS,
    GIVE,
    HAS,
    LACKS,
    PART,
    PLAIN,
    VALUE,
    WANTS,
    Message,
    decode_at,
    decode_value,
)
from rolemesh_delta.producing import Item, Producing
from rolemesh_delta.receiving import Ask, Changed, Deliver, Receiving

__all__ = ["DeltaOptions", "DeltaSender", "DeltaTransport"]

LOG = logging.getLogger(__name__)
TICK_MS: Final = 500
"""Milliseconds between looks at neighbours that give nothing and at refused connections."""
BROKEN: Final = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
"""Events of a connection to a neighbour that does not live."""
TCP: Final = "carry the values with tcp: engine.options.transports.remote=tcp, and no edge in transports.each"


class Unreadable(Exception):
    """A message that no rank of this version sends."""


MALFORMED = (*UNDECODABLE, struct.error, Unreadable)
"""Errors that reading a message may raise."""


class DeltaOptions(BaseModel):
    """Options of the transport `delta`."""

    model_config = ConfigDict(extra="forbid")
    level: int = Field(1, ge=-7, le=19, description="Level of zstandard: higher is smaller and slower.")
    min_bytes: int = Field(1 << 20, ge=0, description="Values of fewer bytes are sent whole, to each consumer.")
    relays: bool = Field(True, description="Consumers of the same value give it to each other.")


@dataclass(frozen=True)
class Command:
    """A request of the rank: the thread runs `do`."""

    do: Callable[[], None]
    ended: Event | None = None


class DeltaTransport(Transport):
    """Sends a value once to the first of its consumers, who give it on; as differences where that is less."""

    own_sockets = True
    Options = DeltaOptions

    def open(self, inbox: Inbox, site: Site) -> str:
        """Bind a socket of its own to a free TCP port behind CurveZMQ, and start the thread."""
        if site.keys is None:
            raise TransportError("delta edges need the job's keys", where=site.ref.in_words)
        self._keys, self._context = site.keys, zmq.Context()
        self._gate = Gate(self._context, site.keys.client_public)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set_hwm(0)
        self._router.maxmsgsize = LIMIT
        self._handshakes = Handshakes(self._router)
        address = listen(self._router, site.host, site.keys)
        self.producing = Producing(randbits(63), self.options.level, relays=self.options.relays)
        self.receiving = Receiving()
        self._refused = self._opened = 0
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        self._neighbours: dict[str, tuple[zmq.Socket[bytes], zmq.Socket[bytes]]] = {}
        self._handlers: dict[zmq.Socket[bytes], Callable[[], None]] = {}
        self._poller = zmq.Poller()
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._wake, self._woken = self._context.socket(zmq.PAIR), self._context.socket(zmq.PAIR)
        for each in (self._wake, self._woken):
            each.set_hwm(0)
        self._wake.bind("inproc://wake")
        self._woken.connect("inproc://wake")
        self._push = inbox.pusher()
        self._traffic: dict[int, tuple[int, int]] = {}
        self._over = False
        self._fault: TransportError | None = None
        self._site = site
        self._thread = Thread(target=self._run, daemon=True, name="delta")
        self._thread.start()
        return address

    def connect(self, address: str) -> Sender:
        """Return a connection, which the thread opens."""
        self._opened += 1
        peer = self._opened
        self.do(lambda: self._open_peer(peer, address))
        return DeltaSender(self, peer)

    def refused(self) -> int:
        """Return the number of failed handshakes. Raises `TransportError` if the thread had to end."""
        if self._fault is not None:
            raise self._fault
        return self._refused

    def traffic(self) -> dict[int, tuple[int, int]]:
        """Return by edge the bytes of the values, once for each consumer, and those that have left this rank."""
        return self._traffic.copy()

    def close(self) -> None:
        """End the thread, and close the sockets."""
        self.do(self._end)
        self._thread.join()
        self._wake.close(linger=0)
        self._gate.close()
        self._context.destroy(linger=0)

    def do(self, what: Callable[[], None], ended: Event | None = None) -> None:
        """Run `what` in the thread, after all that was given before; then set `ended`."""
        self._commands.put(Command(what, ended))
        self._wake.send(b"")

    # ------------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # whatever it is, the rank must not wait for values that nobody receives
            self._fault = _fault_of(error, self._site)
            LOG.error("%s", self._fault, exc_info=error)
            while not self._over:
                self._woken.recv()
                self._command(self._commands.get())
        self._handshakes.close()
        for each in (*self._handlers, self._push):
            each.close(linger=0)

    def _work(self) -> None:
        self._listen(self._woken, self._commanded)
        self._listen(self._router, self._arrived)
        while not self._over:
            for socket, _ in self._poller.poll(TICK_MS):
                if (handle := self._handlers.get(socket)) is not None:
                    handle()
            self._refused = self._handshakes.failed()
            if self.receiving.fetches:
                self.receiving.tick(monotonic())
            self._carry_out()

    def _listen(self, socket: zmq.Socket[bytes], handle: Callable[[], None]) -> None:
        self._handlers[socket] = handle
        self._poller.register(socket, zmq.POLLIN)

    def _leave(self, socket: zmq.Socket[bytes], linger_ms: int) -> None:
        self._poller.unregister(socket)
        del self._handlers[socket]
        socket.close(linger=linger_ms)

    def _end(self) -> None:
        self._over = True

    def _commanded(self) -> None:
        self._woken.recv()
        self._command(self._commands.get())

    def _command(self, command: Command) -> None:
        try:
            if self._fault is None or command.do == self._end:
                command.do()
        finally:
            if command.ended is not None:
                command.ended.set()

    def _dealer(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set_hwm(0)
        socket.maxmsgsize = LIMIT
        return socket

    def _open_peer(self, peer: int, address: str) -> None:
        socket = self._peers[peer] = self._dealer()
        connect(socket, address, self._keys)
        self.producing.opened(peer, address)
        self._listen(socket, lambda: self._answered(peer))

    def close_peer(self, peer: int, linger_ms: int) -> None:
        """Close a connection. Queued frames may take `linger_ms` to leave."""
        if (socket := self._peers.pop(peer, None)) is not None:
            self.producing.closed(peer)
            self._leave(socket, linger_ms)

    def send(self, peer: int, frames: Sequence[Any], item: Item | None = None) -> None:
        """Send frames in order: of a value, with `item`; others as they are."""
        socket = self._peers.get(peer)
        if socket is None:
            return
        if item is None:
            socket.send_multipart([PLAIN, b"", *cut(frames)], copy=False)
            return
        head, nbytes = bytes(frames[0]), sum(item.sizes)
        _, _, _, edge, _, _, _, chunk, *_ = HEAD.unpack_from(head)
        if nbytes < self.options.min_bytes or len(item.sizes) > BUFFERS:
            self._count(edge, nbytes, nbytes)
            socket.send_multipart([PLAIN, b"", *cut(frames)], copy=False)
            return
        self._count(edge, nbytes, 0)
        self._send(socket, self.producing.send(peer, (edge, chunk), item, head), edge)

    def _send(self, socket: zmq.Socket[bytes], messages: Iterable[Message], edge: int) -> None:
        for kind, told, frames in messages:
            if kind == PART:
                self._count(edge, 0, sum(map(len, frames)))
            socket.send_multipart([kind, told, *(cut(frames) if kind == VALUE else frames)], copy=False)

    def _count(self, edge: int, nbytes: int, travelled: int) -> None:
        before = self._traffic.get(edge, (0, 0))
        self._traffic[edge] = before[0] + nbytes, before[1] + travelled

    def _answered(self, peer: int) -> None:
        socket = self._peers[peer]
        kind, told, more = socket.recv(), _part(socket), [*rest(socket)]
        if more or kind not in (HAS, WANTS):
            raise Unreadable(f"it is of the kind {kind[:20]!r}")
        at = decode_at(told)
        place: Any = self.producing.place(at.stream)
        if place is not None:
            self._send(socket, self.producing.answered(peer, kind, at), place[0])

    def _arrived(self) -> None:
        owner, kind, told = self._router.recv(), _part(self._router), _part(self._router)
        if kind in (PLAIN, VALUE):
            first = _part(self._router)
            frames = joined(self._router) if first == CUT else [first, *rest(self._router)]
            if not frames or not len(frames[0]):
                raise Unreadable("it has no frames")
        else:
            frames = [*rest(self._router)]
        if kind == PLAIN:
            self.receiving.plain(owner, frames)
        elif kind == VALUE:
            self.receiving.value(owner, decode_value(told), bytes(frames[0]), monotonic())
        elif kind == PART:
            self.receiving.part(decode_at(told), frames, monotonic())
        elif kind == GIVE:
            self._wanted(owner, told)
        else:
            raise Unreadable(f"it is of the kind {kind[:20]!r}")

    def _wanted(self, follower: bytes, told: bytes) -> None:
        try:
            at = decode_at(told)
        except MALFORMED as error:  # it will ask the producer
            LOG.warning("a neighbour asks for what cannot be read: %s", error)
            return
        self.receiving.give(follower, at)

    def _given(self, socket: zmq.Socket[bytes], address: str) -> None:
        """Take what a neighbour gives. Without one that sends what cannot be read, the producer gives it."""
        kind, told = socket.recv(), _part(socket)
        frames = [*rest(socket)]
        try:
            at = decode_at(told)
            if kind not in (PART, LACKS):
                raise Unreadable(f"it is of the kind {kind[:20]!r}")
        except MALFORMED as error:
            self._leave_neighbour(address, f"it sends what cannot be read: {error}")
            return
        if kind == PART:
            self.receiving.part(at, frames, monotonic(), address)
        else:
            self.receiving.lacks(at)

    def _carry_out(self) -> None:
        while effects := self.receiving.effects:
            self.receiving.effects = []
            for effect in effects:
                if isinstance(effect, Deliver):
                    self._push.send_multipart(effect.frames, copy=False)
                    continue
                kind, told, frames = effect.message
                if isinstance(effect, Ask):
                    self._ask(effect.address, [kind, told])
                    continue
                if kind == PART:
                    self._count(effect.edge, 0, sum(map(len, frames)))
                self._router.send_multipart([effect.to, kind, told, *frames], copy=False)

    def _ask(self, address: str, message: list[bytes]) -> None:
        try:
            self._neighbour(address).send_multipart(message)
        except (zmq.ZMQError, OSError, ValueError) as error:  # no address, or too many open files
            self._leave_neighbour(address, str(error))

    def _neighbour(self, address: str) -> zmq.Socket[bytes]:
        if address not in self._neighbours:
            socket = self._dealer()
            try:
                watch = socket.get_monitor_socket(BROKEN)
                connect(socket, address, self._keys)
            except BaseException:
                socket.disable_monitor()
                socket.close(linger=0)
                raise
            self._neighbours[address] = socket, watch
            self._listen(socket, lambda: self._given(socket, address))
            self._listen(watch, lambda: self._lost(address))
        return self._neighbours[address][0]

    def _lost(self, address: str) -> None:
        recv_monitor_message(self._neighbours[address][1])
        self._leave_neighbour(address)

    def _leave_neighbour(self, address: str, why: str = "") -> None:
        """Pass a neighbour over: the producer gives what it was to give."""
        if why:
            LOG.warning("the neighbour %s is passed over: %s", address, why)
        if address in self._neighbours:
            socket, watch = self._neighbours.pop(address)
            socket.disable_monitor()
            self._leave(watch, 0)
            self._leave(socket, 0)
        self.receiving.lost(address)


def _part(socket: zmq.Socket[bytes]) -> bytes:
    """Receive the next frame of a message that has begun; empty if there is none."""
    return socket.recv() if socket.getsockopt(zmq.RCVMORE) else b""


def _fault_of(error: Exception, site: Site) -> TransportError:
    """Return the error with which the rank fails, since its thread cannot go on."""
    what, remedy = f"the transport delta cannot go on: {type(error).__name__}: {error}", TCP
    if isinstance(error, MALFORMED):
        what = f"the transport delta has received a message that it cannot read: {error}"
        remedy = f"install the same version of rolemesh-delta on every node; or {TCP}"
    elif isinstance(error, Changed):
        what = f"the transport delta gave a value up: {error}"
        remedy = "look for code of the producer that writes to memory which an operator has returned or lent"
    elif isinstance(error, MemoryError):
        what = "the transport delta has no memory for a value"
        remedy = f"give each rank more: roles.{site.role}.resources.memory_gb; or return smaller values, in chunks"
    elif isinstance(error, (zmq.ZMQError, OSError)) and error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files on the node: ulimit -n 65536"
    return TransportError(what, where=f"{site.ref.in_words}, node {site.node}", remedy=remedy)


class DeltaSender(Sender):
    """The connection to one peer."""

    def __init__(self, transport: DeltaTransport, peer: int) -> None:
        self._transport, self._peer, self._closed = transport, peer, False

    def send(self, frame: bytes) -> None:
        self._transport.do(lambda: self._transport.send(self._peer, [frame]))

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        frames, dtypes = payload.frames(stamp), payload.dtypes()
        item = Item(payload, stamp[4], frames[1:], dtypes)
        self._transport.do(lambda: self._transport.send(self._peer, frames, item))

    def close(self, linger_ms: int) -> None:
        if self._closed:
            return
        self._closed, ended = True, Event()
        self._transport.do(lambda: self._transport.close_peer(self._peer, linger_ms), ended)
        ended.wait(linger_ms / 1000 + 1)
