"""Messages between the supervisor and its master, over a socket pair that no other process holds."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Generic, TypeAlias, TypeVar

import msgspec

from rolemesh.api.cluster import ClusterView

__all__ = [
    "AgentState",
    "Agents",
    "Beat",
    "Exited",
    "Kill",
    "Link",
    "Refuse",
    "Spawn",
    "SupervisorStart",
    "ToMaster",
    "ToSupervisor",
]

LENGTH = struct.Struct("<I")
T = TypeVar("T")


class SupervisorStart(msgspec.Struct, frozen=True):
    """Standard input of the supervisor: an encoded `MasterConfig`, and the nodes of the emulated cluster."""

    bundle: bytes
    nodes: ClusterView


class AgentState(msgspec.Struct, frozen=True):
    """The newest incarnation of an agent. `pid` is 0 while an older one is dying; `status` is that of ``waitpid``."""

    agent: str
    incarnation: int
    node: str
    pid: int
    status: int | None = None


class Spawn(msgspec.Struct, frozen=True, tag=True):
    """Fork an agent after its older incarnations are reaped. Nothing happens if this incarnation was already
    requested."""

    agent: str
    incarnation: int
    node: str
    config: bytes


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Send SIGKILL to this incarnation."""

    agent: str
    incarnation: int


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The process of the master runs. `turns` counts the turns of its loop. `stopping`: the loop has ended, and the end
    takes time."""

    turns: int
    stopping: bool = False


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """No master can continue this job, and why. The process ends after this message."""

    why: str


class Agents(msgspec.Struct, frozen=True, tag=True):
    """All agents that masters of this job have requested. It is the first message to each new master."""

    agents: tuple[AgentState, ...]


class Exited(msgspec.Struct, frozen=True, tag=True):
    """An agent's process has ended and is reaped."""

    agent: AgentState


ToSupervisor: TypeAlias = Spawn | Kill | Beat | Refuse
ToMaster: TypeAlias = Agents | Exited


class Link(Generic[T]):
    """One end of the pair: sends any message, and receives the messages of one union. Any thread may call `send`."""

    def __init__(self, sock: socket.socket, kind: object) -> None:
        self.socket = sock
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self.socket.fileno()

    def send(self, message: ToSupervisor | ToMaster) -> None:
        """Send a message. Raises `OSError` if the other side is gone, or if it does not read and the socket is
        non-blocking."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self) -> list[T] | None:
        """Return the received messages; None at the end. Waits, or raises `BlockingIOError`, depending on the
        socket."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            return None
        if not data:
            return None
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(bytes(self._buffer[LENGTH.size : end])))
            del self._buffer[:end]
        return messages

    def close(self) -> None:
        """Close this end."""
        self.socket.close()
