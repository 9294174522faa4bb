"""The API of a transport, a kind of plugin of this engine: it brings frames from one rank to another.

A job file names transports under ``engine.options.transports``. Transports do not read the content of frames.

A rank has one `Inbox`. A transport makes it reachable for peers (`Transport.open`) and returns a `Sender` per peer. It
delivers received frames into the inbox, so a rank waits in one place whatever its transports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh.api.rank_ref import OfRank
from rolemesh.errors import EXIT_FAILED, RolemeshError
from rolemesh.kinds import Kind

__all__ = ["Inbox", "Payload", "Sender", "Site", "Stamp", "Transport", "TransportError", "TransportKeys"]

KIND = Kind(
    "transports",
    "transport",
    "rolemesh_dataplane.transports:Transport",
    ("rank",),
    conformance="rolemesh_testing:TransportConformance",
)

Stamp: TypeAlias = tuple[int, int, int, int, int, int]
"""The identity of a chunk: last (0 or 1), edge, producer rank, generation, step, chunk."""


class TransportError(RolemeshError):
    """An edge broke: unknown peer, refused key, malformed frame."""

    exit_code = EXIT_FAILED


class TransportKeys(msgspec.Struct, frozen=True):
    """The job's CurveZMQ keys, z85: of the receiving and of the connecting side."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str


class Site(OfRank, frozen=True):
    """The place of a rank: its names, its host as other nodes reach it, the job's private folders and keys."""

    node: str
    generation: int
    host: str
    socket_dir: str
    shm_dir: str
    keys: TransportKeys | None = None

    def ipc_path(self, purpose: str) -> str:
        """Return a short name in `socket_dir` (mode 0700): an ipc path has at most 107 bytes.

        Raises `TransportError` if the folder alone is too long.
        """
        key = f"{self.ref}/{self.generation}/{purpose}".encode()
        path = str(Path(self.socket_dir) / blake2b(key, digest_size=6).hexdigest())
        if (size := len(path.encode())) > 107:
            what = f"the socket's path has {size} bytes, the system takes 107"
            raise TransportError(what, where=path, remedy="set TMPDIR to a shorter folder")
        return path


class Payload(ABC):
    """A chunk that the engine has encoded once for all its consumers."""

    @abstractmethod
    def frame(self, stamp: Stamp) -> bytes:
        """Return the only frame of a payload that is not in a slot."""

    @abstractmethod
    def descriptor(self, stamp: Stamp) -> bytes:
        """Return the frame that tells a reader on this node the place of the rest in shared memory."""

    @abstractmethod
    def frames(self, stamp: Stamp) -> Sequence[Any]:
        """Return head and buffers as separate frames, for another node: bytes-like views that stay until released."""

    def dtypes(self) -> Sequence[str]:
        """Return the dtype of each buffer, in the order of `frames` after the head: "float32", "bfloat16".

        A buffer with bytes, or of a pickled value, has "".
        """
        return ()


class Inbox(ABC):
    """The one queue for everything that is sent to a rank."""

    context: Any
    """The process's `zmq.Context`."""
    socket: Any
    """The `zmq.Socket` (PULL) that the rank reads: a transport may bind it to a further address."""
    address: str
    """The address at which processes of this node reach it (``ipc://…``)."""

    @abstractmethod
    def pusher(self) -> Any:
        """Return a `zmq.Socket` that delivers frames from inside this process. Not thread-safe: one per thread."""


class Sender(ABC):
    """The connection to one peer.

    Sends never block, because credits bound the frames under way. When the sender of a dead peer is closed, the frames
    that the peer did not take are dropped: its next generation asks for them.
    """

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Send one small frame, in order with everything else that is sent here."""

    @abstractmethod
    def send_payload(self, payload: Payload, stamp: Stamp) -> None:
        """Send a payload in a slot. The slot's bytes do not change until the peer has released it."""

    @abstractmethod
    def close(self, linger_ms: int) -> None:
        """Stop sending. Queued frames may take `linger_ms` to leave."""


class Transport(Plugin, ABC):
    """Base class of transports (entry-point group ``rolemesh.transports``). One instance per rank."""

    reach: ClassVar[Literal["node", "network"]] = "network"
    """node: it works between ranks of one node only, so it is refused as `transports.remote`."""
    own_sockets: ClassVar[bool] = False
    """True: it receives on sockets of its own and passes frames on through `Inbox.pusher`, and its sockets have a
    `zmq.Context` of their own. So it can be the transport of single edges (``transports.each``) beside another one."""

    @abstractmethod
    def open(self, inbox: Inbox, site: Site) -> str:
        """Make `inbox` reachable and return the address that peers pass to `connect`."""

    @abstractmethod
    def connect(self, address: str) -> Sender:
        """Return a connection to the peer at `address`, at once. Called after `open`."""

    def refused(self) -> int:
        """Return the number of refused connections since the start: wrong key, wrong protocol.

        A waiting rank asks at least once per second. Raises `TransportError` if the transport cannot go on, for example
        because its thread has ended: the rank then fails with this error, instead of waiting for ever.
        """
        return 0

    def traffic(self) -> Mapping[int, tuple[int, int]]:
        """Return two sums of bytes by the number of the edge, since the start: of the values, and those that travelled.

        The first counts a value that `Sender.send_payload` was given once for each peer. The second has what this rank
        has sent for the edge, including what it passes on for others. Any thread may ask. Empty: nothing is counted.
        """
        return {}

    def close(self) -> None:
        """Release the resources of `open`. Senders are closed before, the inbox after."""
