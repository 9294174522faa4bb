"""What the supervisor and its master say to each other, over a socket pair that nobody else holds."""

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
    """What the supervisor reads from its standard input: an encoded `JobBundle`, and the nodes of the "cluster"."""

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
    """Fork an agent, once older incarnations of it are reaped; nothing if this one has been asked for already."""

    agent: str
    incarnation: int
    node: str
    config: bytes


class Kill(msgspec.Struct, frozen=True, tag=True):
    """SIGKILL this incarnation."""

    agent: str
    incarnation: int


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The master's process runs. `turns` counts those of its loop; `stopping`: the loop is over, the end takes time."""

    turns: int
    stopping: bool = False


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """No master can go on with this job, and why; its process ends after that."""

    why: str


class Agents(msgspec.Struct, frozen=True, tag=True):
    """All agents that masters of this job have asked for: told first to each new master."""

    agents: tuple[AgentState, ...]


class Exited(msgspec.Struct, frozen=True, tag=True):
    """An agent's process is gone and reaped."""

    agent: AgentState


ToSupervisor: TypeAlias = Spawn | Kill | Beat | Refuse
ToMaster: TypeAlias = Agents | Exited


class Link(Generic[T]):
    """One end of the pair: sends any message, receives those of one union. `send` may be called from any thread."""

    def __init__(self, sock: socket.socket, kind: object) -> None:
        self.socket = sock
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self.socket.fileno()

    def send(self, message: ToSupervisor | ToMaster) -> None:
        """Raises `OSError` if the other side is gone (or, on a socket that does not block, does not read)."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.socket.sendall(LENGTH.pack(len(data)) + data)

    def receive(self) -> list[T] | None:
        """What has come; None at the end. Waits, or raises `BlockingIOError`, as the socket does."""
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
