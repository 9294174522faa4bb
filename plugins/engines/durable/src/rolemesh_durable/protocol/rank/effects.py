"""The effects that a driver gives a rank: mail, waits, log, memory, and the encoding of values.

The shipped driver is `rolemesh_durable.rank`; `tests/simulation` has another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Combine, Selection
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.protocol.rank.page import Page
from rolemesh_durable.protocol.rank.phases import Phases

__all__ = [
    "Arrival", "Consumer", "Effects", "Flushed", "GroupEnd", "Item", "Log", "Mail", "Memory", "Producer", "Reader",
    "Stopping", "Values", "Waits",
]  # fmt: skip


class Stopping(BaseException):
    """Every wait raises this once the agent has asked the rank to stop; no ``except Exception`` swallows it."""


class Item(Protocol):
    """A chunk as the rank sends it."""

    users: int
    """Number of edges that have sent it and may need it again."""

    @property
    def body(self) -> Sized:
        """The bytes of it that this process keeps."""

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, wherever they are."""

    def free(self) -> None:
        """Remove one user."""

    def rescue(self) -> None:
        """Move buffers that another process has removed into new memory. Raises `TransportError`."""


class Arrival(Protocol):
    """A chunk as the rank received it."""

    @property
    def small(self) -> bool:
        """True if it takes no memory that its producer waits for."""

    def value(self) -> Any:
        """The value that was sent."""


T = TypeVar("T", bound=Item)
Taken = TypeVar("Taken", bound=Item, contravariant=True)
Made = TypeVar("Made", bound=Item, covariant=True)
Reader: TypeAlias = Callable[[int, list[list[Any]]], Any]
"""Builds the consumer's value from its step and its chunks (`Arrival`) by source."""


class Flushed(Protocol):
    """An end that sends later, together, what it has for other ranks."""

    def flush(self) -> None:
        """Send all that waits, such as acknowledgements."""


class Consumer(Flushed, Protocol):
    """The consumer's end of an edge."""

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Any | None) -> None:
        """Take a chunk; `item` is None for the mark that no chunk follows."""


class Producer(Protocol):
    """The producer's end of an edge."""

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """Note that a consumer has released everything up to `step`."""

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """Note that a consumer lacks everything from `from_step` on, and has released everything up to `released`."""


class GroupEnd(Protocol):
    """The end that takes the barrier messages of the ranks of the collective group."""

    def message(self, rank: int, generation: int, kind: int, position: int, vote: int) -> None:
        """Handle a message of `rank`, of this `kind`, about the call at `position`, maybe with a `vote`."""


class Mail(Protocol[Taken]):
    """A rank's connections to others. It hands frames to the registered ends, including frames that came earlier."""

    @property
    def site(self) -> Site:
        """The place of this rank."""

    def generation(self, role: str, rank: int) -> int:
        """Return the newest generation of a peer that the rank knows; -1 if it knows none."""

    def connect(self, peers: Sequence[Peer]) -> None:
        """Set the present addresses of these peers."""

    def forget(self, roles: Collection[str]) -> None:
        """Forget the ranks of these roles, which are gone."""

    def consume(self, edge: int, end: Consumer) -> None:
        """Register the end that takes the chunks of an edge."""

    def produce(self, edge: int, end: Producer) -> None:
        """Register the end that takes the asks and acknowledgements of an edge."""

    def gather(self, end: GroupEnd) -> None:
        """Register the end that takes the group's barrier messages."""

    def data(
        self, item: Taken | None, role: str, consumers: Sequence[int], edge: int, step: int, chunk: int, last: bool
    ) -> None:
        """Send a chunk (None: the mark that no more come) to `consumers`, ranks of `role`."""

    def ask(self, role: str, rank: int, edge: int, from_step: int, released: int) -> None:
        """Ask a producer for all values from `from_step` on; all up to `released` are released."""

    def release(self, role: str, rank: int, edge: int, step: int) -> None:
        """Tell a producer that all values up to `step` are released."""

    def tell_group(self, rank: int, kind: int, position: int, vote: int = 0) -> None:
        """Send a rank of the group a barrier message."""

    def put_off(self, end: Flushed) -> None:
        """Flush `end` before the rank blocks."""

    def flush(self) -> None:
        """Flush all ends that were put off."""

    def pump(self) -> object:
        """Handle the frames that have come; does not wait."""

    def lose(self, lost: LogLost) -> None:
        """Every later wait raises `lost`."""


class Waits(Phases):
    """A rank's way to wait. Meanwhile it answers other ranks, and does its idle work."""

    def until(
        self, ready: Callable[[], object], phase: int, edge: int = -1, *, look_s: float = 0.0, deadline: int = 0
    ) -> bool:
        """Return True once `ready()` is true, at once if it is. Do not call `ready` again after that.

        The page shows `phase` and `edge` meanwhile. `look_s`: call `ready` this often, as no message announces it.
        Return False if `deadline`, a time of the rank's clock in ns, comes first. With either, the rank does no idle
        work meanwhile. Raises `Stopping`, and the `LogLost` of a lost log.
        """
        raise NotImplementedError

    def look(self) -> None:
        """Handle the messages that have come. Raises `Stopping`."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """True once the agent has asked the rank to stop."""
        raise NotImplementedError


class Log(Protocol[Taken]):
    """The log of what a rank has sent. It outlives the rank's process."""

    @property
    def sure(self) -> bool:
        """True if it has all chunks that former generations may have shown."""

    @property
    def position(self) -> int:
        """The position of the next record."""

    @property
    def nbytes(self) -> int:
        """The bytes that the log takes."""

    def chunk_of(
        self, item: Taken | None, edge: int, step: int, chunk: int, last: bool, hold: int, consumers: tuple[int, ...]
    ) -> None:
        """Append a chunk (None: the mark that no more come) that is about to be sent."""

    def whole(self, call: int, step: int, first: int, hold: int, items: bytes = b"") -> None:
        """Append that the chunks from position `first` on are all that `call` has made at `step`, of `items`."""

    def decide(self, scope: str, step: int, hold: int, body: bytes, *, persists: bool = False) -> None:
        """Append a decision about `scope` at `step`. A restart may need it until step ``step + hold`` is committed.

        `persists`: persisted snapshots have it too.
        """

    def awaits_commit(self, step: int) -> bool:
        """Return True if the commit of `step` would free memory of the log."""


class Memory(Protocol):
    """The shared memory in which a rank keeps large values."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that are in use."""

    def within(self, kept: int, most: int) -> None:
        """Give back free memory: the rank keeps `kept` bytes in all, and may keep `most`."""

    def trim(self, step: int) -> None:
        """Give back memory that was not used for long; the rank is at `step`."""

    def forget_lost(self) -> None:
        """Forget files that another process has removed."""


class Values(Protocol[Made]):
    """The conversion of values to chunks, and of chunks to values."""

    def encode(self, value: Any, selection: Selection) -> Made:
        """Return the part of `value` that `selection` names, as the rank sends it."""

    def join(self, chunks: Sequence[Any]) -> Any:
        """Return the value that was yielded in these chunks."""

    def reader(self, edge: Edge, sources: Sequence[int], how: Combine) -> Reader:
        """Return the function that builds values of an edge from `sources`. Its result is None if parts are missing."""

    def combine(self, parts: Sequence[Any], how: Combine) -> Any:
        """Return the value of parts that only make sense together."""

    def rows(self, parts: Sequence[Any]) -> Any:
        """Return the rows of several items as one value."""


@dataclass(frozen=True, slots=True)
class Effects(Generic[T]):
    """All effects that a driver provides."""

    page: Page
    mail: Mail[T]
    waits: Waits
    values: Values[T]
    memory: Memory
    log: Log[T] | None
    """None if the rank logs nothing, and no rank is restored."""
    aged: Callable[[int], None]
    """Called with the age in steps of the value that the present call takes, if it had a choice."""
    now: Callable[[], int]
    """Returns the time of the rank's clock in ns."""
