"""Transports that each do one thing wrong; all of them carry frames over zmq's ipc, as `shm` does, or over TCP."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.tcp_transport import TcpTransport
from rolemesh_dataplane.transports import Inbox, Payload, Sender, Site, Stamp, Transport


class Sound(ShmTransport):
    """Does everything right."""


class Delegating(Sender):
    """Sends as another one does."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    def send(self, frame: bytes) -> None:
        self.sender.send(frame)

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self.sender.send_payload(payload, stamp)

    def close(self, linger_ms: int) -> None:
        self.sender.close(linger_ms)


def sending(sender: type[Delegating]) -> type[Transport]:
    """A transport with senders of this class."""

    class Changed(ShmTransport):
        def connect(self, address: str) -> Sender:
            return sender(super().connect(address))

    Changed.__name__ = Changed.__qualname__ = f"With{sender.__name__}"
    Changed.__doc__ = sender.__doc__
    globals()[Changed.__name__] = Changed
    return Changed


class Verbose(ShmTransport):
    """Has an address of several lines."""

    def open(self, inbox: Inbox, site: Site) -> str:
        return super().open(inbox, site) + "\n"

    def connect(self, address: str) -> Sender:
        return super().connect(address.strip())


class Crowded(ShmTransport):
    """Has one address for all."""

    def open(self, inbox: Inbox, site: Site) -> str:
        super().open(inbox, site)
        return f"ipc://{site.socket_dir}/all"


class Truncating(Delegating):
    """Forgets what a large value consists of."""

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self.sender.send_payload(payload, stamp) if payload.nbytes < 1 << 20 else None


class Rounding(Delegating):
    """Sends the 16 bits of a float32 that count most, to halve the traffic."""

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        head, *buffers = payload.frames(stamp)  # type: ignore[attr-defined]
        for at, dtype in enumerate(payload.dtypes()):
            if dtype == "float32":
                buffers[at] = (np.frombuffer(buffers[at], np.uint32) & 0xFFFF0000).tobytes()
        self.sender._socket.send_multipart([head, *buffers])  # type: ignore[attr-defined]


class FewBuffers(Delegating):
    """Has no room for many buffers."""

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        if len(payload.sizes) < 4:
            self.sender.send_payload(payload, stamp)


class Hurrying(Delegating):
    """Lets large values overtake small ones."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.kept: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.kept.append(frame)
        if len(self.kept) == 100:
            self.flush()

    def flush(self) -> None:
        for frame in self.kept:
            self.sender.send(frame)
        self.kept.clear()


class Twice(Delegating):
    """Sends to be sure."""

    def send(self, frame: bytes) -> None:
        self.sender.send(frame)
        self.sender.send(frame)


class Deaf(Delegating):
    """Says one thing only."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.said = 0

    def send(self, frame: bytes) -> None:
        self.said += 1
        if self.said < 20:
            self.sender.send(frame)


class OneOnly(Delegating):
    """Sends a payload once, also if it has more consumers."""

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        if payload.users == 1:
            self.sender.send_payload(payload, stamp)


class Lazy(Delegating):
    """Reads the slot when the next value is sent."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.first = True

    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        self.sender.send_payload(payload, stamp)
        payload.users += 1


class Blocking(Delegating):
    """Waits where the peer does not read."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.room = 1000

    def send(self, frame: bytes) -> None:
        while not self.room:
            time.sleep(0.1)
        self.room -= 1
        self.sender.send(frame)


class Probing(ShmTransport):
    """Wants to see that the peer is there before anything is sent."""

    def connect(self, address: str) -> Sender:
        while not Path(address.removeprefix("ipc://")).exists():
            time.sleep(0.01)
        return super().connect(address)


class Abrupt(Delegating):
    """Drops what is queued."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.queue: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.queue.append(frame)
        if len(self.queue) > 50:
            self.sender.send(self.queue.pop(0))


class Patient(Delegating):
    """Waits until all has been taken, whatever it may."""

    def close(self, linger_ms: int) -> None:
        self.sender.close(linger_ms)
        while True:
            time.sleep(1)


class Homebound(ShmTransport):
    """Knows only peers of its own process."""

    def open(self, inbox: Inbox, site: Site) -> str:
        super().open(inbox, site)
        self.home = os.getpid()
        return f"{inbox.address}?{self.home}"

    def connect(self, address: str) -> Sender:
        path, _, process = address.partition("?")
        return super().connect(path if int(process) == self.home else "ipc:///dev/null/nowhere")


class Mourning(Delegating):
    """Stops for good when a peer has died."""

    def __init__(self, sender: Sender) -> None:
        super().__init__(sender)
        self.path = Path(sender._socket.get(zmq.LAST_ENDPOINT).decode().removeprefix("ipc://"))  # type: ignore[attr-defined]
        self.sent = 0

    def send(self, frame: bytes) -> None:
        self.sender.send(frame)
        self.sent += 1
        if self.sent > 400:
            time.sleep(3600)


class Reusing(ShmTransport):
    """Has one address for all generations of a rank, so that what was for the dead one comes to the next."""

    queued: list[tuple[str, bytes]] = []

    def connect(self, address: str) -> Sender:
        sender = super().connect(address)
        for _, frame in self.queued:
            sender.send(frame)
        return _Recording(sender, address, self.queued)


class _Recording(Delegating):
    def __init__(self, sender: Sender, address: str, queued: list[tuple[str, bytes]]) -> None:
        super().__init__(sender)
        self.address, self.queued = address, queued

    def send(self, frame: bytes) -> None:
        self.queued.append((self.address, frame))
        self.sender.send(frame)


class Claiming(TcpTransport):
    """Says that it has sockets of its own, and guards the context of the inbox, which has a guard already."""

    own_sockets = True


class Suspicious(ShmTransport):
    """Counts everybody as refused."""

    def refused(self) -> int:
        return 1


class Open(ShmTransport):
    """Listens on the network and lets everybody in."""

    def open(self, inbox: Inbox, site: Site) -> str:
        self._context = inbox.context
        port = inbox.socket.bind_to_random_port(f"tcp://{site.host}")
        return f"tcp://{site.host}:{port}"


class Forgetting(ShmTransport):
    """Leaves a file and a thread behind."""

    def open(self, inbox: Inbox, site: Site) -> str:
        Path(site.socket_dir, f"notes-{site.rank}").touch()
        return super().open(inbox, site)


class Expecting(ShmTransport):
    """Takes it for granted that somebody has connected."""

    sender: Sender

    def connect(self, address: str) -> Sender:
        self.sender = super().connect(address)
        return self.sender

    def close(self) -> None:
        assert self.sender


class Hoarding(Delegating):
    """Keeps a descriptor of every way there was."""

    kept: list[int] = []

    def close(self, linger_ms: int) -> None:
        self.kept.append(os.open(os.devnull, os.O_RDONLY))
        super().close(linger_ms)


class Global(ShmTransport):
    """Has one context for the whole process, which the first that closes takes from the others."""

    shared: Any = None
    users: list[Any] = []

    def open(self, inbox: Inbox, site: Site) -> str:
        self.users.append(self)
        self.gone = threading.Event()
        return super().open(inbox, site)

    def connect(self, address: str) -> Sender:
        if self.gone.is_set():
            raise RuntimeError("the context is closed")
        return super().connect(address)

    def close(self) -> None:
        for user in self.users:
            user.gone.set()


SENDING = {sender: sending(sender) for sender in Delegating.__subclasses__()}
"""The transports of these senders; made here, where other processes find them too."""
