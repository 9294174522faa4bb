"""The effects that a driver gives a rank: mail, waits, log, memory, and the encoding of values.

The shipped driver is `rolemesh_durable.rank`; `tests/simulation` has another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Combine, Selection
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.protocol.rank.page import Page
from rolemesh_durable.transports import Site

__all__ = [
    "Arrival",
    "Consumer",
    "Effects",
    "GroupEnd",
    "Item",
    "Log",
    "Mail",
    "MatesEnd",
    "Memory",
    "Producer",
    "Reader",
    "Stopping",
    "Values",
    "Waits",
]


class Stopping(BaseException):
    """Every wait raises this once the agent has asked the rank to stop; no ``except Exception`` swallows it."""


class Item(Protocol):
    """A chunk as it is sent."""

    users: int
    """Edges that have sent it and may need it again."""

    @property
    def body(self) -> Sized:
        """The bytes of it that this process keeps."""

    @property
    def nbytes(self) -> int:
        """The bytes of its buffers, wherever they lie."""

    def free(self) -> None:
        """One user less."""

    def rescue(self) -> None:
        """Put into new memory what somebody has removed. Raises `TransportError`."""


class Arrival(Protocol):
    """A chunk as it has come."""

    @property
    def small(self) -> bool:
        """Whether it takes no memory that its producer waits for."""

    def value(self) -> Any:
        """The value that was sent."""


T = TypeVar("T", bound=Item)
Taken = TypeVar("Taken", bound=Item, contravariant=True)
Made = TypeVar("Made", bound=Item, covariant=True)
Reader: TypeAlias = Callable[[int, list[list[Any]]], Any]
"""Makes the consumer's value of the step at which it was made, and of its chunks (`Arrival`) by source."""


class Consumer(Protocol):
    """The consumer's end of an edge."""

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Any | None) -> None:
        """A chunk has come; `item` is None for the mark that no chunk follows."""

    def flush(self) -> None:
        """Tell the producers what has been released."""


class Producer(Protocol):
    """The producer's end of an edge."""

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """A consumer has released everything up to `step`."""

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """A consumer lacks everything from `from_step` on, and has released all up to `released`."""


class MatesEnd(Protocol):
    """The end that takes what the mates say with which a rank shares the rows of an edge out."""

    def message(self, kind: int, mate: int, generation: int, step: int, item: int) -> None:
        """`mate` sends a message of `kind` about `item` of `step`."""


class GroupEnd(Protocol):
    """The end that takes what the ranks of the collective group say at its barrier."""

    def message(self, rank: int, generation: int, kind: int, position: int, vote: int) -> None:
        """`rank` sends a message of `kind` about the call at `position`, maybe with a `vote`."""


class Mail(Protocol[Taken]):
    """A rank's ways to others. It hands frames on to the registered ends, also the frames that came before."""

    @property
    def site(self) -> Site:
        """The place of this rank."""

    def generation(self, role: str, rank: int) -> int:
        """The newest generation of a peer that the rank has heard of; -1 if it has heard of none."""

    def connect(self, peers: Sequence[Peer]) -> None:
        """These are the addresses of these peers now."""

    def forget(self, roles: Collection[str]) -> None:
        """The ranks of these roles are gone."""

    def consume(self, edge: int, end: Consumer) -> None:
        """`end` takes the chunks of an edge."""

    def produce(self, edge: int, end: Producer) -> None:
        """`end` takes the asks and acknowledgements of an edge."""

    def share(self, edge: int, end: MatesEnd) -> None:
        """`end` takes what mates say of the items of an edge."""

    def gather(self, end: GroupEnd) -> None:
        """`end` takes what the group says at its barrier."""

    def data(
        self, item: Taken | None, role: str, consumers: Sequence[int], edge: int, step: int, chunk: int, last: bool
    ) -> None:
        """Send a chunk (None: the mark that no more come) to `consumers`, ranks of `role`."""

    def ask(self, role: str, rank: int, edge: int, from_step: int, released: int) -> None:
        """Ask a producer for all from `from_step` on; all up to `released` is released."""

    def release(self, role: str, rank: int, edge: int, step: int) -> None:
        """Tell a producer that all up to `step` is released."""

    def tell_mate(self, rank: int, edge: int, kind: int, step: int, item: int) -> None:
        """Tell a rank of the same role about an item."""

    def tell_group(self, rank: int, kind: int, position: int, vote: int = 0) -> None:
        """Tell a rank of the group something at its barrier."""

    def put_off(self, end: Consumer) -> None:
        """Flush `end` before the rank blocks."""

    def flush(self) -> None:
        """Flush all that was put off."""

    def pump(self) -> object:
        """Handle what has come; does not wait."""

    def lose(self, lost: LogLost) -> None:
        """Every later wait raises `lost`."""


class Waits(Protocol):
    """How a rank waits. Meanwhile it answers others, and does what it does whenever it is idle."""

    def until(self, ready: Callable[[], object], phase: int, edge: int = -1, *, look_s: float = 0.0) -> None:
        """Return once `ready()` is true, at once if it is. Do not call `ready` again after that.

        The page shows `phase` and `edge` meanwhile. `look_s`: call `ready` this often, as no message announces it; the
        rank does nothing else meanwhile. Raises `Stopping`, and the `LogLost` of a lost log.
        """


class Log(Protocol[Taken]):
    """The log of what a rank has sent. It outlives the rank's process."""

    @property
    def sure(self) -> bool:
        """Whether it has all that former generations may have shown."""

    @property
    def position(self) -> int:
        """The position of the next record."""

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""

    def chunk_of(
        self, item: Taken | None, edge: int, step: int, chunk: int, last: bool, hold: int, consumers: tuple[int, ...]
    ) -> None:
        """Append a chunk (None: the mark that no more come) that is about to be sent."""

    def whole(self, call: int, step: int, first: int, hold: int, items: bytes = b"") -> None:
        """Append that the chunks from position `first` on are all that `call` has made at `step`, of `items`."""

    def decide(self, scope: str, step: int, hold: int, body: bytes, *, persists: bool = False) -> None:
        """Append what the rank has decided about `scope` at `step`; a restart may need it until step ``step + hold`` is
        committed. `persists`: persisted snapshots have it too."""

    def awaits_commit(self, step: int) -> bool:
        """Whether the commit of `step` would free something here."""


class Memory(Protocol):
    """The shared memory in which a rank keeps large values."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that are in use."""

    def within(self, kept: int, most: int) -> None:
        """The rank keeps `kept` bytes in all, and may keep `most`: give back free memory that is beyond that."""

    def trim(self, step: int) -> None:
        """Give back what was not used for long; the rank is at `step`."""

    def forget_lost(self) -> None:
        """Somebody has removed files: forget them."""


class Values(Protocol[Made]):
    """How values become chunks, and chunks values."""

    def encode(self, value: Any, selection: Selection) -> Made:
        """The part of `value` that `selection` names, as it is sent."""

    def join(self, chunks: Sequence[Any]) -> Any:
        """The value that was yielded in chunks."""

    def reader(self, edge: Edge, sources: Sequence[int], how: Combine) -> Reader:
        """How the chunks of an edge from `sources` become values; None where some of the value is missing."""

    def combine(self, parts: Sequence[Any], how: Combine) -> Any:
        """The value of parts that only make sense together."""

    def rows(self, parts: Sequence[Any]) -> Any:
        """The rows of several items as one value."""


@dataclass(frozen=True, slots=True)
class Effects(Generic[T]):
    """All that a driver gives."""

    page: Page
    mail: Mail[T]
    waits: Waits
    values: Values[T]
    memory: Memory
    log: Log[T] | None
    """None: nothing is logged, and nobody is restored."""
    aged: Callable[[int], None]
    """The present call takes a value of this age in steps, where it had a choice."""
    now: Callable[[], int]
    """The rank's clock in ns."""
