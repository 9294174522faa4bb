"""ZeroMQ over TCP with the job's keys, like `tcp`; of a large value, only what has changed since the one before.

The sender knows the version that a receiver has: each version is acknowledged. A receiver that cannot use a difference
asks for the whole value. A restarted rank has no version, so it gets whole values first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

import msgspec
import numpy as np
import zmq
from pydantic import BaseModel, ConfigDict, Field

from rolemesh_dataplane.auth_monitor import Handshakes
from rolemesh_dataplane.curve import Gate, connect, listen
from rolemesh_dataplane.payload import HEAD
from rolemesh_dataplane.pieces import CUT, LIMIT, cut, joined, rest
from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport, TransportError
from rolemesh_delta.changes import Broken, Bytes, Difference, apply, difference

__all__ = ["DeltaTransport"]

PLAIN, WHOLE, PART, CHANGED = b"p", b"w", b"d", b"c"
"""Kinds of messages: frames as they are; a value to remember; what has changed in some buffers of a remembered value;
the end of such parts."""
HAS, LACKS = b"h", b"l"
"""Answers: the receiver has remembered a version; it lacks the one to which a difference belongs."""
VERSION: Final = struct.Struct("<IIIq")
"""Edge, producer, chunk, number of the version."""
PART_BYTES: Final = 8 << 20
"""Bytes of the buffers that are compared before their differences leave, so that both ends work at the same time."""
LOOK_MS: Final = 100
"""Milliseconds after which a thread that waits for an answer looks whether its connection is closed."""
TRIES: Final = 3
"""Differences without gain after which a stream is sent whole."""
PAUSE: Final = 50
"""Values that are sent whole before the next attempt."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Difference]).decode


class DeltaOptions(BaseModel):
    """Options of the transport `delta`."""

    model_config = ConfigDict(extra="forbid")
    level: int = Field(1, ge=-7, le=19, description="Level of zstandard: higher is smaller and slower.")
    min_bytes: int = Field(1 << 20, ge=0, description="Values of fewer bytes are sent whole.")


@dataclass
class Version:
    """The newest value of a stream, at either end."""

    number: int
    head: bytes
    buffers: list[Bytes]
    has: int = -1
    """Sender: the newest number that the receiver has remembered."""
    asked: bool = False
    """Sender: a difference was sent last, which the receiver may lack."""
    failed: int = 0
    """Sender: differences in a row without gain; below 0: values to send whole first."""
    owner: bytes = b""
    """Receiver: the connection from which it came."""
    made: list[Bytes] = field(default_factory=list)
    """Receiver: copies of the next version's first buffers."""


class DeltaTransport(Transport):
    """Sends values between nodes as differences where that is less. Both ends keep a copy of the last value."""

    own_sockets = True
    Options = DeltaOptions

    def open(self, inbox: Inbox, site: Site) -> str:
        """Bind a socket of its own to a free TCP port behind CurveZMQ, and deliver from a thread."""
        if site.keys is None:
            raise TransportError("delta edges need the job's keys", where=site.ref.in_words)
        self._keys, self.context = site.keys, zmq.Context()
        self._gate = Gate(self.context, site.keys.client_public)
        socket = self.context.socket(zmq.ROUTER)
        socket.set_hwm(0)
        socket.maxmsgsize = LIMIT
        self._handshakes = Handshakes(socket)
        address = listen(socket, site.host, site.keys)
        self._refused = self._connections = 0
        self._senders: list[DeltaSender] = []
        self._quit = self.context.socket(zmq.PAIR)
        self._quit.bind("inproc://quit")
        self._thread = Thread(target=self._receive, args=(socket, inbox.pusher()), daemon=True, name="delta")
        self._thread.start()
        return address

    def connect(self, address: str) -> Sender:
        """Return a connection with a thread of its own, which compares and sends."""
        self._connections += 1
        sender = DeltaSender(self, address, f"inproc://sender-{self._connections}")
        self._senders.append(sender)
        return sender

    def forget(self, sender: DeltaSender) -> None:
        """Note that a connection is closed."""
        self._senders.remove(sender)

    def attach(self, socket: zmq.Socket[bytes], address: str) -> None:
        """Connect a socket with the job's keys."""
        connect(socket, address, self._keys)

    def refused(self) -> int:
        """Return the number of failed handshakes."""
        return self._refused

    def close(self) -> None:
        """End the threads, and close the sockets."""
        for sender in [*self._senders]:
            sender.close(0)
        self._quit.send(b"")
        self._thread.join()
        self._quit.close(linger=0)
        self._gate.close()
        self.context.destroy(linger=0)

    def _receive(self, socket: zmq.Socket[bytes], push: Any) -> None:
        end, poller = self.context.socket(zmq.PAIR), zmq.Poller()
        end.connect("inproc://quit")
        poller.register(socket, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        versions: dict[tuple[int, int, int], Version] = {}
        while end not in (ready := dict(poller.poll(1000))):
            self._refused = self._handshakes.failed()
            if socket in ready:
                owner, kind, told, first = (socket.recv() for _ in range(4))
                frames: list[Any] = joined(socket) if first == CUT else [first, *rest(socket)]
                if kind == PLAIN:
                    push.send_multipart(frames, copy=False)
                else:
                    self._take(versions, owner, kind, told, frames, socket, push)
        self._handshakes.close()
        for each in (socket, end, push):
            each.close(linger=0)

    @staticmethod
    def _take(
        versions: dict[tuple[int, int, int], Version],
        owner: bytes,
        kind: bytes,
        told: bytes,
        frames: list[Any],
        socket: zmq.Socket[bytes],
        push: Any,
    ) -> None:
        *stream, number = VERSION.unpack(told)
        key = stream[0], stream[1], stream[2]
        head, *buffers = frames
        known = versions.get(key)
        if kind == WHOLE:
            versions[key] = Version(number, b"", [np.array(np.frombuffer(b, np.uint8)) for b in buffers], owner=owner)
        elif known is None or known.owner != owner or known.number != number - 1:
            if kind == CHANGED:
                socket.send_multipart([owner, LACKS, told])
            return
        elif kind == PART:
            try:
                for change in _decode(head):
                    buffer = known.buffers[len(known.made)]
                    apply(buffer, change)
                    known.made.append(buffer.copy())  # the consumer may write to what it gets
            except (Broken, IndexError, msgspec.MsgspecError):
                del versions[key]  # the end of the parts will find none
            return
        else:
            known.number, buffers, known.made = number, known.made, []
            if len(buffers) != len(known.buffers):
                del versions[key]
                socket.send_multipart([owner, LACKS, told])
                return
        push.send_multipart([head, *buffers], copy=False)
        socket.send_multipart([owner, HAS, told])


class DeltaSender(Sender):
    """The connection to one peer. Only its thread uses the socket."""

    def __init__(self, transport: DeltaTransport, address: str, wakes: str) -> None:
        """`wakes`: an address inside the process, of this connection only."""
        self._transport, self._options = transport, transport.options
        self._todo: SimpleQueue[tuple[Sequence[Any], Sequence[str] | None] | None] = SimpleQueue()
        self._versions: dict[tuple[int, int, int], Version] = {}
        self._linger_ms, self._closing = 0, False
        self._wake = transport.context.socket(zmq.PAIR)
        self._wake.set_hwm(0)
        self._wake.bind(wakes)
        self._thread = Thread(target=self._run, args=(address, wakes), daemon=True, name="delta-sender")
        self._thread.start()

    def send(self, frame: bytes) -> None:
        self._put(([frame], None))

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self._put((payload.frames(stamp), payload.dtypes()))

    def close(self, linger_ms: int) -> None:
        if self._wake.closed:
            return
        self._linger_ms, self._closing = linger_ms, True
        self._put(None)
        self._thread.join(linger_ms / 1000 + 1)
        self._wake.close(linger=0)
        self._transport.forget(self)

    def _put(self, what: tuple[Sequence[Any], Sequence[str] | None] | None) -> None:
        self._todo.put(what)
        self._wake.send(b"")

    def _run(self, address: str, wakes: str) -> None:
        context = self._transport.context
        socket, wake, poller = context.socket(zmq.DEALER), context.socket(zmq.PAIR), zmq.Poller()
        for each in (socket, wake):
            each.set_hwm(0)
        self._transport.attach(socket, address)
        wake.connect(wakes)
        for each in (socket, wake):
            poller.register(each, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                while socket in ready and socket.poll(0):
                    self._answered(socket, *socket.recv_multipart())
                if wake in ready:
                    wake.recv()
                    what = self._todo.get()
                    if what is None:
                        break
                    self._send(socket, *what)
        except zmq.ContextTerminated:
            pass
        finally:
            wake.close(linger=0)
            socket.close(linger=self._linger_ms)

    def _send(self, socket: zmq.Socket[bytes], frames: Sequence[Any], dtypes: Sequence[str] | None) -> None:
        if dtypes is None or sum(map(len, frames[1:])) < self._options.min_bytes:
            socket.send_multipart([PLAIN, b"", *cut(frames)], copy=False)
            return
        head, new = bytes(frames[0]), [np.frombuffer(each, np.uint8) for each in frames[1:]]
        _, _, _, edge, producer, _, _, chunk, *_ = HEAD.unpack_from(head)
        key = edge, producer, chunk
        known = self._versions.get(key)
        if known is not None and not self._await_answer(socket, known):
            return
        if known is None or [*map(len, known.buffers)] != [*map(len, new)]:
            number = 0 if known is None else known.number + 1
            known = self._versions[key] = Version(number, head, [each.copy() for each in new])
            self._send_whole(socket, key, known)
            return
        usable = known.has == known.number and known.failed >= 0
        known.number, known.head = known.number + 1, head
        if not usable:
            for old, now in zip(known.buffers, new, strict=True):
                np.copyto(old, now)
            known.failed = min(0, known.failed + 1) if known.failed < 0 else known.failed
            self._send_whole(socket, key, known)
            return
        told, level, part, size, packed = VERSION.pack(*key, known.number), self._options.level, [], 0, 0
        for index, (old, now, dtype) in enumerate(zip(known.buffers, new, dtypes, strict=True), 1):
            part.append(difference(old, now, dtype, level))
            size += len(now)
            if size >= PART_BYTES or index == len(new):
                data = _encode(part)
                part, size, packed = [], 0, packed + len(data)
                socket.send_multipart([PART, told, *cut([data])], copy=False)
        socket.send_multipart([CHANGED, told, head])
        known.asked = True
        gains = 2 * packed < sum(map(len, new))
        known.failed = 0 if gains else -PAUSE if known.failed + 1 >= TRIES else known.failed + 1

    def _await_answer(self, socket: zmq.Socket[bytes], known: Version) -> bool:
        """Wait until the receiver has, or lacks, the last difference: it may need the value that is here now. Return
        False if the connection is closed before."""
        while known.asked and known.has < known.number:
            if self._closing:
                return False
            if socket.poll(LOOK_MS):
                self._answered(socket, *socket.recv_multipart())
        return True

    @staticmethod
    def _send_whole(socket: zmq.Socket[bytes], key: tuple[int, int, int], known: Version) -> None:
        # A copy goes out, since the next difference changes the version here while ZeroMQ may still send.
        frames = [known.head, *(buffer.tobytes() for buffer in known.buffers)]
        socket.send_multipart([WHOLE, VERSION.pack(*key, known.number), *cut(frames)], copy=False)

    def _answered(self, socket: zmq.Socket[bytes], kind: bytes, told: bytes) -> None:
        *stream, number = VERSION.unpack(told)
        key = stream[0], stream[1], stream[2]
        known = self._versions[key]
        if kind == HAS:
            known.has = number
        elif number == known.number:
            known.asked = False
            self._send_whole(socket, key, known)
