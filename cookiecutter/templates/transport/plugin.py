"""The transport: frames through Unix sockets; large values stay in shared memory, and a frame tells where."""

import os
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport

__all__ = ["{{ cookiecutter.__class }}"]

LENGTH = struct.Struct("<I")
"""Start of a frame: its size in bytes."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer, as the system knows them."""


class {{ cookiecutter.__class }}(Transport):
    """Each rank listens on a socket in the job's private folder; a thread puts what comes into the rank's inbox.

    Only processes of the same user are let in. It has no options; a class `Options` would give it some.
    """

    def open(self, inbox: Inbox, site: Site) -> str:
        """Listen; the address is the socket's path."""
        path = site.ipc_path("{{ cookiecutter.name }}")
        self._refused = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(socket.SOMAXCONN)
        self._stop, self._stopped = socket.socketpair()
        self._inbox = inbox.pusher()
        self._thread = Thread(target=self._receive, args=(self._inbox.send,), daemon=True)
        self._thread.start()
        return path

    def connect(self, address: str) -> Sender:
        """A way to the peer, with a thread of its own."""
        return _Sender(address)

    def refused(self) -> int:
        """Connections of other users."""
        return self._refused

    def close(self) -> None:
        """End the thread, and remove the socket."""
        self._stop.close()
        self._thread.join()
        self._inbox.close(linger=0)
        Path(self._listener.getsockname()).unlink(missing_ok=True)
        self._listener.close()
        self._stopped.close()

    def _receive(self, deliver: Callable[[bytes], object]) -> None:
        peers: dict[socket.socket, _Frames] = {}
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._stopped, selectors.EVENT_READ)
            while self._stopped not in (found := [key.fileobj for key, _ in ready.select()]):
                if self._listener in found and (peer := self._accept()) is not None:
                    peers[peer] = _Frames()
                    ready.register(peer, selectors.EVENT_READ)
                for peer in peers.keys() & set(found):
                    data = _read(peer)
                    for frame in peers[peer].complete(data):
                        deliver(frame)
                    if not data:
                        ready.unregister(peer)
                        del peers[peer]
                        peer.close()
        for peer in peers:
            peer.close()

    def _accept(self) -> socket.socket | None:
        peer, _ = self._listener.accept()
        _, user, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if user == os.getuid():
            return peer
        self._refused += 1
        peer.close()
        return None


def _read(peer: socket.socket) -> bytes:
    """Return the bytes that have come; b"" if the peer has closed or died."""
    try:
        return peer.recv(1 << 16)
    except ConnectionError:
        return b""


class _Frames:
    """Frames out of a stream. A frame that a dead peer has half sent is dropped with its connection."""

    def __init__(self) -> None:
        self._data = bytearray()

    def complete(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        while len(self._data) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return
            yield bytes(self._data[LENGTH.size : end])
            del self._data[:end]


class _Sender(Sender):
    """Sends in a thread, because a rank must not wait for a peer that does not read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._dropped = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, frame: bytes) -> None:
        self._queue.put(frame)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self._queue.put(payload.descriptor(stamp))

    def close(self, linger_ms: int) -> None:
        self._queue.put(None)
        self._thread.join(linger_ms / 1000)
        if self._thread.is_alive():
            self._dropped = True
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        # A peer that is gone is no error here: its next generation is connected to again, and asks for what it lacks.
        with suppress(OSError):
            self._socket.connect(self._address)
            while not self._dropped and (frame := self._queue.get()) is not None:
                self._socket.sendall(LENGTH.pack(len(frame)) + frame)
