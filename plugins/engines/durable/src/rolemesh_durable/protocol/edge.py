"""Both ends of an edge as state machines without I/O: asks, credits, retention, replay, order, duplicates, readiness.

A producer rank sends each of its consumers exactly one part per value, in chunks, once that consumer has asked for it.
After a restart of either side the consumer asks again. So one mechanism serves start, restart of either side, and
reconnection. Between two generations of ranks no chunk is lost, repeated or reordered: a new generation of either side
starts a new conversation with an ask. Consumers acknowledge the step up to which they have released everything.
(Sender-based message logging: Elnozahy et al. 2002, "A survey of rollback-recovery protocols", section 4.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_dataplane.transports import TransportError

__all__ = ["InEdgeState", "Kept", "LogLost", "OutEdgeState", "hold_of", "last_call"]

T = TypeVar("T")

NEVER: Final = 1 << 62
"""The first step for a consumer that has not asked."""
SMALL = 1024
"""Maximum number of steps with small values under way."""


class LogLost(TransportError):
    """Consumers have used values whose log is lost. Computing them again may give different values."""


def hold_of(edge: Edge, graph: LogicalGraph, activity: Activity, unrepeated: Collection[str]) -> int:
    """Return for how many steps after its own a value of `edge` may be requested by a rank restored at the commit.

    A consumer restored at step r takes the values made after r - lag. Unless its role is `unrepeated`, it also repeats
    its last call up to r of each operator that returns nothing. So that call's input is needed until the next such
    call.
    """
    call = graph.ops[edge.dst]
    if call.role in unrepeated or call.returns is not None:
        return edge.lag
    period = activity.periods[edge.dst]
    return edge.lag + (period.every if period is not None else 0)


def last_call(activity: Activity, op: int, step: int) -> int | None:
    """Return the last step up to `step` at which call `op` is active; None if there is none."""
    period = activity.periods[op]
    if period is None:
        return None
    found = step - (step - period.at) % period.every
    return found if found >= period.start else None


class Kept(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A chunk that was sent and may be needed again. `item` is None for the mark that ends a value.

    `nbytes` of its `size` bytes are in the memory of this process.
    """

    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]
    item: T | None
    nbytes: int
    size: int


class OutEdgeState(Generic[T]):
    """A producer rank's end of an edge.

    At most `window` steps are under way to the slowest consumer. Up to `SMALL` steps may be under way while they are
    together smaller than `budget` bytes.
    """

    def __init__(self, consumers: Sequence[int], window: int, *, retain: bool, hold: int = 0, budget: int = 0) -> None:
        """`consumers` are ranks. With `retain`, a value made at step m is kept until m + `hold` is committed."""
        self.window, self._budget = window, budget
        self.retain, self.hold = retain, hold
        self.kept_bytes = self.sent_bytes = self._size = 0
        self._acked = dict.fromkeys(consumers, -1)
        self._generations = dict.fromkeys(consumers, -1)
        self._from = dict.fromkeys(consumers, NEVER)
        self._low = self._committed = self._gone = -1
        self._under_way: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._kept: deque[Kept[T]] = deque()
        self._pins: tuple[int, ...] = ()
        self._pinned: list[Kept[T]] = []

    @property
    def under_way(self) -> int:
        """Number of steps that are sent and that some consumer has not released."""
        return len(self._under_way)

    def feeds(self, consumer: int) -> bool:
        """Return True if this rank is a consumer of the edge."""
        return consumer in self._acked

    def awaits_release(self, step: int) -> bool:
        """Return True if some consumer has not released all values up to `step`."""
        return bool(self._under_way) and self._under_way[0] <= step

    @property
    def credit(self) -> bool:
        """True if a value of a new step may be sent."""
        count = len(self._under_way)
        return count < self.window or (self._size < self._budget and count < SMALL)

    def admits(self, step: int) -> bool:
        """Return True if the value of `step` may be sent.

        It needs no credit if a later step's value is under way already.

        After a restart, a log may hold chunks of later steps than the one that the rank makes again.
        """
        return self.credit or (bool(self._under_way) and step <= max(self._under_way))

    @property
    def unheard(self) -> bool:
        """True if some consumer has not asked yet."""
        return bool(self._from) and NEVER in self._from.values()

    @property
    def ahead(self) -> list[tuple[int, int]]:
        """The consumers that have asked for steps which are not sent yet, each with its first step."""
        return [(consumer, step) for consumer, step in self._from.items() if step != NEVER]

    def sent(
        self, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: T | None, nbytes: int, size: int = 0
    ) -> tuple[int, ...]:
        """Keep a chunk of `step`, either a new one (encoded as `item`) or one from a former generation's log.

        `nbytes` of its `size` bytes are in the memory of this process. Returns those of `consumers` to which the chunk
        must be sent now: they have asked, and do not have it.
        """
        if step > self._low:
            self._leaves(step, size)
        self._kept.append(Kept(step, chunk, last, consumers, item, nbytes, size))
        self.kept_bytes += nbytes
        self.sent_bytes += size
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
        """Note the generation of `consumer`. A new generation gets nothing until it asks."""
        if generation > self._known(consumer):
            self._generations[consumer] = generation
            self._from[consumer] = NEVER

    @property
    def kept(self) -> tuple[Kept[T], ...]:
        """All chunks that may be needed again, in the order in which they were sent."""
        return tuple(self._kept)

    def ask(self, consumer: int, generation: int, from_step: int, released: int) -> list[Kept[T]]:
        """Answer an ask: return the chunks to send to `consumer`, in order.

        The consumer lacks everything from `from_step` on, and has released everything up to `released`. An ask of an
        older generation is ignored. Raises `TransportError` if a chunk is not kept any more.
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
        self._generations[consumer], self._from[consumer], self._acked[consumer] = generation, from_step, released
        self._low = min(self._acked.values())
        self._under_way.clear()
        self._sizes.clear()
        self._size = 0
        for kept in self._kept:
            if kept.step > self._low:
                self._leaves(kept.step, kept.size)
        return [kept for kept in self._kept if kept.step >= from_step and consumer in kept.consumers]

    def acked(self, consumer: int, generation: int, step: int) -> list[T]:
        """Note that `consumer` has released everything up to `step`. Returns the items that no rank needs any more."""
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
        """Note that `step` is committed. Returns the items that no rank needs any more."""
        self._committed = max(self._committed, step)
        return self._freed()

    def pin(self, steps: Sequence[int]) -> list[T]:
        """Set the steps whose snapshots are being persisted; keep the values in flight across them.

        A value is in flight across a step if it is made by then and held afterwards. Returns the items that no rank
        needs any more.
        """
        self._pins = tuple(steps)
        if not self._pinned:
            return []
        held, self._pinned = self._pinned, []
        return [item for kept in held if (item := self._let_go(kept)) is not None]

    def clear(self) -> list[T]:
        """Forget all chunks, since no consumer will ask again. Returns all items."""
        items = [kept.item for kept in (*self._pinned, *self._kept) if kept.item is not None]
        self._pinned, self.kept_bytes = [], 0
        self._kept.clear()
        return items

    def awaits_commit(self, step: int) -> bool:
        """Return True if the commit of `step` would free a chunk here, so that waiting for it makes sense."""
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
    """The state of one producer rank: its generation, the next step and chunk, and the step in use."""

    __slots__ = ("chunk", "generation", "step", "used")

    def __init__(self, from_step: int) -> None:
        self.generation = -1
        self.step = from_step
        self.chunk = 0
        self.used = -1


class InEdgeState(Generic[T]):
    """A consumer rank's end of an edge: it gathers the chunks of `sources`, in their order, step by step."""

    def __init__(self, sources: Sequence[int], from_step: int = 0, *, revocable: bool = False) -> None:
        """Take values from producer step `from_step` on; earlier ones are duplicates.

        With `revocable`, a restarted producer may make different values, so the edge drops the ones that no step has
        used.
        """
        self.sources = tuple(sources)
        self.revocable = revocable
        self._index = {source: position for position, source in enumerate(self.sources)}
        self._heads = [_Source(from_step) for _ in self.sources]
        self._chunks: dict[int, list[list[T]]] = {}
        self._ended: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """Number of complete values that no step has taken. Any thread may ask."""
        return sum(ended == len(self.sources) for ended in [*self._ended.values()])

    def restart_source(self, source: int, generation: int) -> int:
        """Note the generation of `source`. Returns the first step to ask it for: all earlier values are complete.

        The edge drops the chunks of an incomplete value and takes them again. If a consumer of the stream has used some
        of them, it keeps them, and the repeated ones are duplicates. A `revocable` edge drops every value that no step
        has used.
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
        """Mark all chunks of `step` and of earlier steps as used, so that the edge does not take them back."""
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
        """Return True if the last chunk of every producer is there."""
        return self._ended.get(step) == len(self.sources)

    def settled(self, step: int) -> bool:
        """Return True if the value is ready and cannot change before a step uses it."""
        return not self.revocable and self.ready(step)

    def take(self, step: int) -> list[list[T]]:
        """Return the chunks of `step`, one list per source, and forget them."""
        del self._ended[step]
        return self._chunks.pop(step)

    def peek(self, step: int) -> list[list[T]]:
        """Return the chunks of a value that is ready, without forgetting them."""
        return self._chunks[step]

    def forget(self, before: int) -> None:
        """Forget the values of steps before this one: no step will take them."""
        for step in [step for step in self._ended if step < before]:
            self.take(step)

    def chunk(self, step: int, position: int, index: int) -> T | None:
        """Return chunk `index` of source number `position` for use now; None if it is not there.

        On a `revocable` edge a chunk is there once the value is complete.
        """
        chunks = self._chunks.get(step)
        if chunks is None or index >= len(chunks[position]) or (self.revocable and not self.ended(step, position)):
            return None
        self._heads[position].used = step
        return chunks[position][index]

    def ended(self, step: int, position: int) -> bool:
        """Return True if source number `position` has sent all its chunks of `step`."""
        return self._heads[position].step > step

    def missing(self, step: int) -> tuple[int, ...]:
        """Return the producers whose value of `step` is not complete."""
        return tuple(s for position, s in enumerate(self.sources) if not self.ended(step, position))

    def _position(self, source: int) -> int:
        position = self._index.get(source)
        if position is None:
            raise TransportError(f"rank {source} is no producer of this edge", remedy="all ranks must run one plan")
        return position
