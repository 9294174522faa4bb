"""Both ends of an edge as state machines, sans I/O: asks, credits, retention, replay; order, duplicates, readiness.

A producer rank sends each of its consumers exactly one part per value, in chunks, from the moment at which that
consumer has asked for it. Whoever restarts, the consumer asks (again): one mechanism serves start, restart of either
side, and reconnection. Between two generations of ranks nothing is lost, repeated or overtaken; a new generation of
either side starts a new conversation with an ask. Consumers acknowledge with the step up to which they have released
everything. (Sender-based message logging: Elnozahy et al. 2002, "A survey of rollback-recovery protocols", section 4.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.transports import TransportError

__all__ = ["InEdgeState", "Kept", "LogLost", "OutEdgeState", "hold_of", "last_call"]

T = TypeVar("T")

NEVER: Final = 1 << 62
"""The first step for a consumer that has not asked."""
SMALL = 1024
"""So many small values may be under way."""


class LogLost(TransportError):
    """Others have used what this rank is about to make again, and it may come to something else."""


def hold_of(edge: Edge, graph: LogicalGraph, activity: Activity, unrepeated: Collection[str]) -> int:
    """How many steps after it was made a value of `edge` may still be asked for by a rank restored at the commit.

    A consumer restored at step r takes what was made after r - lag. One of a role that is not `unrepeated` also repeats
    its last call up to r of each operator that returns nothing, so that input is needed until the next such call.
    """
    call = graph.ops[edge.dst]
    if call.role in unrepeated or call.returns is not None:
        return edge.lag
    period = activity.periods[edge.dst]
    return edge.lag + (period.every if period is not None else 0)


def last_call(activity: Activity, op: int, step: int) -> int | None:
    """The last step up to `step` at which call `op` is active, if any."""
    period = activity.periods[op]
    if period is None:
        return None
    found = step - (step - period.at) % period.every
    return found if found >= period.start else None


class Kept(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A chunk that was sent and may be needed again. `item` is None for the mark that no chunk follows.

    Of its `size` in bytes, `nbytes` are kept in this process.
    """

    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]
    item: T | None
    nbytes: int
    size: int


class OutEdgeState(Generic[T]):
    """One producer rank's end: at most `window` steps are under way to the slowest consumer; or more of them, up to
    `SMALL`, while they are together smaller than `budget` bytes."""

    def __init__(self, consumers: Sequence[int], window: int, *, retain: bool, hold: int = 0, budget: int = 0) -> None:
        """`consumers` are ranks. With `retain`, what was made at step m is kept until m + `hold` is committed."""
        self.window, self._budget = window, budget
        self.retain = retain
        self.hold = hold
        self.kept_bytes = 0
        self._acked = dict.fromkeys(consumers, -1)
        self._generations = dict.fromkeys(consumers, -1)
        self._from = dict.fromkeys(consumers, NEVER)
        self._low = -1
        self._committed = -1
        self._gone = -1
        self._under_way: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._size = 0
        self._kept: deque[Kept[T]] = deque()
        self._pins: tuple[int, ...] = ()
        self._pinned: list[Kept[T]] = []

    @property
    def under_way(self) -> int:
        """Steps sent that some consumer has not released."""
        return len(self._under_way)

    def feeds(self, consumer: int) -> bool:
        """Whether it is a consumer of this edge."""
        return consumer in self._acked

    def awaits_release(self, step: int) -> bool:
        """Whether some consumer has not released all that was made up to `step`."""
        return bool(self._under_way) and self._under_way[0] <= step

    @property
    def credit(self) -> bool:
        """Whether a value of a new step may be sent."""
        count = len(self._under_way)
        return count < self.window or (self._size < self._budget and count < SMALL)

    def admits(self, step: int) -> bool:
        """Whether the value of `step` may be sent: it needs no credit if a later step's is under way already.

        After a restart, a log may hold chunks of later steps than the one that is made again.
        """
        return self.credit or (bool(self._under_way) and step <= max(self._under_way))

    @property
    def unheard(self) -> bool:
        """Whether some consumer has not asked yet."""
        return bool(self._from) and NEVER in self._from.values()

    @property
    def ahead(self) -> list[tuple[int, int]]:
        """Who has asked for what has not been sent yet, and from which step on."""
        return [(consumer, step) for consumer, step in self._from.items() if step != NEVER]

    def sent(
        self, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: T | None, nbytes: int, size: int = 0
    ) -> tuple[int, ...]:
        """A chunk of `step` is made, encoded as `item`, or taken over from a former generation's log.

        Of its `size` in bytes, `nbytes` are kept in this process.
        Returns those of `consumers` that it must be sent to now: who has asked, and has not got it already.
        """
        if step > self._low:
            self._leaves(step, size)
        self._kept.append(Kept(step, chunk, last, consumers, item, nbytes, size))
        self.kept_bytes += nbytes
        return consumers if not self._from else self._listeners(step, consumers)

    def _leaves(self, step: int, size: int) -> None:
        if not self._under_way or self._under_way[-1] != step:
            self._under_way.append(step)
            self._sizes.append(0)
        self._sizes[-1] += size
        self._size += size

    def _listeners(self, step: int, consumers: tuple[int, ...]) -> tuple[int, ...]:
        for consumer in [c for c in consumers if self._from.get(c, NEVER) <= step]:
            del self._from[consumer]
        return tuple(consumer for consumer in consumers if consumer not in self._from)

    def restarted(self, consumer: int, generation: int) -> None:
        """`consumer` is in `generation` now: if that is new, it gets nothing until it asks."""
        if generation > self._known(consumer):
            self._generations[consumer] = generation
            self._from[consumer] = NEVER

    @property
    def kept(self) -> tuple[Kept[T], ...]:
        """All that may be needed again, in the order in which it was sent."""
        return tuple(self._kept)

    def ask(self, consumer: int, generation: int, from_step: int, released: int) -> list[Kept[T]]:
        """`consumer` lacks all from `from_step` on and has released all up to `released`: what to send, in order.

        What comes from an older generation of it is ignored. Raises `TransportError` if something is not kept any more.
        """
        if generation < self._known(consumer):
            return []
        if from_step <= self._gone:
            raise TransportError(
                f"step {from_step} is asked for again but only those after {self._gone} are kept",
                remedy="restore a snapshot of the newest committed step",
            )
        if generation == self._generations[consumer] and self._from.get(consumer) != NEVER:
            released = max(released, self._acked[consumer])
        self._generations[consumer] = generation
        self._from[consumer] = from_step
        self._acked[consumer] = released
        self._low = min(self._acked.values())
        self._under_way.clear()
        self._sizes.clear()
        self._size = 0
        for kept in self._kept:
            if kept.step > self._low:
                self._leaves(kept.step, kept.size)
        return [kept for kept in self._kept if kept.step >= from_step and consumer in kept.consumers]

    def acked(self, consumer: int, generation: int, step: int) -> list[T]:
        """`consumer` has released everything up to `step`; the items that nobody needs any more are returned."""
        if generation != self._known(consumer) or step <= self._acked[consumer]:
            return []
        self._acked[consumer] = step
        low = min(self._acked.values())
        if low == self._low:
            return []
        self._low = low
        under_way = self._under_way
        while under_way and under_way[0] <= low:
            under_way.popleft()
            self._size -= self._sizes.popleft()
        return self._freed()

    def committed(self, step: int) -> list[T]:
        """`step` is committed; the items that nobody needs any more are returned."""
        self._committed = max(self._committed, step)
        return self._freed()

    def pin(self, steps: Sequence[int]) -> list[T]:
        """The snapshots of just these steps are being persisted, with what crosses them: made by then, held after.

        Returns the items that nobody needs any more.
        """
        self._pins = tuple(steps)
        if not self._pinned:
            return []
        held, self._pinned = self._pinned, []
        return [item for kept in held if (item := self._let_go(kept)) is not None]

    def clear(self) -> list[T]:
        """Nobody asks any more; all items are returned."""
        items = [kept.item for kept in (*self._pinned, *self._kept) if kept.item is not None]
        self._pinned, self.kept_bytes = [], 0
        self._kept.clear()
        return items

    def awaits_commit(self, step: int) -> bool:
        """Whether the commit of `step` would free something here, so that waiting for it makes sense."""
        return bool(self._kept) and self._kept[0].step + self.hold <= step

    def _known(self, consumer: int) -> int:
        known = self._generations.get(consumer)
        if known is None:
            raise TransportError(f"rank {consumer} is no consumer of this edge", remedy="all ranks must run one plan")
        return known

    def _freed(self) -> list[T]:
        limit = min(self._low, self._committed - self.hold) if self.retain else self._low
        kept, freed = self._kept, []
        while kept and kept[0].step <= limit:
            gone = kept.popleft()
            self._gone = gone.step
            item = self._let_go(gone)
            if item is not None:
                freed.append(item)
        return freed

    def _let_go(self, gone: Kept[T]) -> T | None:
        if self._pins and any(gone.step <= pin < gone.step + self.hold for pin in self._pins):
            self._pinned.append(gone)
            return None
        self.kept_bytes -= gone.nbytes
        return gone.item


class _Source:
    """What is known of one producer rank: its generation, the step and chunk it may send next, the step in use."""

    __slots__ = ("chunk", "generation", "step", "used")

    def __init__(self, from_step: int) -> None:
        self.generation = -1
        self.step = from_step
        self.chunk = 0
        self.used = -1


class InEdgeState(Generic[T]):
    """One consumer rank's end: gathers the chunks of each of `sources`, in their order, step by step."""

    def __init__(self, sources: Sequence[int], from_step: int = 0, *, revocable: bool = False) -> None:
        """`from_step`: values of earlier producer steps are duplicates. `revocable`: a restarted producer may make
        other values than before, so the edge takes back what no step has used."""
        self.sources = tuple(sources)
        self.revocable = revocable
        self._index = {source: position for position, source in enumerate(self.sources)}
        self._heads = [_Source(from_step) for _ in self.sources]
        self._chunks: dict[int, list[list[T]]] = {}
        self._ended: dict[int, int] = {}

    def restart_source(self, source: int, generation: int) -> int:
        """`source` is in `generation` now. Returns the first step to ask it for: all before it have come completely.

        Chunks of an incomplete value are dropped and taken again, unless a consumer of the stream has used some: then
        what comes again is a duplicate. Of a `revocable` one all that has not been used is dropped.
        """
        position = self._position(source)
        head = self._heads[position]
        if generation > head.generation:
            head.generation = generation
            if self.revocable:
                self._take_back(position, head)
            elif head.chunk and head.used != head.step:
                head.chunk = 0
                self._chunks[head.step][position].clear()
        return head.step

    def _take_back(self, position: int, head: _Source) -> None:
        begun = [step for step in self._chunks if head.used < step < head.step + bool(head.chunk)]
        for step in begun:
            self._chunks[step][position].clear()
            self._ended[step] -= step < head.step
        if begun:
            head.step, head.chunk = min(begun), 0

    def use(self, step: int) -> None:
        """What is there of `step`, and before, is used: it is not taken back."""
        for head in self._heads:
            head.used = max(head.used, step)

    def accept(self, source: int, generation: int, step: int, chunk: int, last: bool, item: T | None) -> bool:
        """Take a chunk (`item` None: only the end of the value). False if it is a duplicate or from a dead generation.

        Raises `TransportError` for an unknown producer and for a chunk that leaves a gap.
        """
        position = self._index.get(source)
        head = self._heads[self._position(source) if position is None else position]
        if generation != head.generation:
            if generation < head.generation:
                return False
            self.restart_source(source, generation)
        if step < head.step or (step == head.step and chunk < head.chunk):
            return False
        if chunk != (head.chunk if step == head.step else 0) or (step > head.step and head.chunk):
            raise TransportError(f"chunk {chunk} of step {step} follows chunk {head.chunk - 1} of step {head.step}")
        chunks = self._chunks.get(step)
        if chunks is None:
            chunks = self._chunks[step] = [[] for _ in self.sources]
            self._ended[step] = 0
        if item is not None:
            chunks[self._index[source]].append(item)
        if last:
            self._ended[step] += 1
            head.step, head.chunk = step + 1, 0
        else:
            head.step, head.chunk = step, chunk + 1
        return True

    def ready(self, step: int) -> bool:
        """Whether the last chunk of every producer is there."""
        return self._ended.get(step) == len(self.sources)

    def take(self, step: int) -> list[list[T]]:
        """The chunks of `step`, a list per source; they are forgotten here."""
        del self._ended[step]
        return self._chunks.pop(step)

    def peek(self, step: int) -> list[list[T]]:
        """As `take`, of a value that is ready, but it stays."""
        return self._chunks[step]

    def forget(self, before: int) -> None:
        """The values of steps before this one will not be taken."""
        for step in [step for step in self._ended if step < before]:
            self.take(step)

    def chunk(self, step: int, position: int, index: int) -> T | None:
        """Chunk `index` of source number `position` for use now, or None if it has not come (or does not exist).

        One of a `revocable` value has come when all of them have.
        """
        chunks = self._chunks.get(step)
        if chunks is None or index >= len(chunks[position]) or (self.revocable and not self.ended(step, position)):
            return None
        self._heads[position].used = step
        return chunks[position][index]

    def ended(self, step: int, position: int) -> bool:
        """Whether source number `position` has sent all its chunks of `step`."""
        return self._heads[position].step > step

    def missing(self, step: int) -> tuple[int, ...]:
        """The producers whose value of `step` has not come completely."""
        return tuple(s for position, s in enumerate(self.sources) if not self.ended(step, position))

    def _position(self, source: int) -> int:
        position = self._index.get(source)
        if position is None:
            raise TransportError(f"rank {source} is no producer of this edge", remedy="all ranks must run one plan")
        return position
