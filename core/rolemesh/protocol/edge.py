"""Both ends of an edge as state machines, sans I/O: credits, retention and replay; order, duplicates and readiness.

A producer rank sends each of its consumers exactly one part per value, in chunks. Consumers acknowledge with the step
up to which they have released everything, so an acknowledgement may be repeated or lost without harm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from rolemesh.errors import TransportError

__all__ = ["InEdgeState", "Kept", "OutEdgeState"]

T = TypeVar("T")


class Kept(NamedTuple, Generic[T]):
    """A chunk that was sent and may be needed again. `item` is None for the mark that no chunk follows."""

    step: int
    chunk: int
    last: bool
    consumers: tuple[int, ...]
    item: T | None
    nbytes: int


class OutEdgeState(Generic[T]):
    """One producer rank's end: at most `window` steps are under way to the slowest consumer."""

    def __init__(self, consumers: Sequence[int], window: int, *, retain: bool) -> None:
        """`consumers` are ranks; with `retain`, what is released is kept until its step is committed."""
        self.window = window
        self.retain = retain
        self.kept_bytes = 0
        self._acked = dict.fromkeys(consumers, -1)
        self._low = -1
        self._committed = -1
        self._under_way: deque[int] = deque()
        self._kept: deque[Kept[T]] = deque()

    @property
    def under_way(self) -> int:
        """Steps sent that some consumer has not released."""
        return len(self._under_way)

    @property
    def credit(self) -> bool:
        """Whether a value of a new step may be sent."""
        return len(self._under_way) < self.window

    def sent(self, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: T | None, nbytes: int) -> None:
        """A chunk of `step` has left, encoded as `item`."""
        if not self._under_way or self._under_way[-1] != step:
            self._under_way.append(step)
        self._kept.append(Kept(step, chunk, last, consumers, item, nbytes))
        self.kept_bytes += nbytes

    def acked(self, consumer: int, step: int) -> list[T]:
        """`consumer` has released everything up to `step`; the items that nobody needs any more are returned."""
        known = self._acked.get(consumer)
        if known is None:
            raise TransportError(f"rank {consumer} is no consumer of this edge")
        if step <= known:
            return []
        self._acked[consumer] = step
        low = min(self._acked.values())
        if low == self._low:
            return []
        self._low = low
        under_way = self._under_way
        while under_way and under_way[0] <= low:
            under_way.popleft()
        return self._freed()

    def committed(self, step: int) -> list[T]:
        """`step` is committed; the items that nobody needs any more are returned."""
        self._committed = max(self._committed, step)
        return self._freed()

    def awaits_commit(self, step: int) -> bool:
        """Whether the commit of a step before `step` alone would free something here."""
        return bool(self._kept) and self._kept[0].step < step and self._kept[0].step <= self._low

    def rewind(self, consumer: int, from_step: int) -> list[Kept[T]]:
        """`consumer` has started again and needs everything from `from_step` on: what to send, in order.

        Raises `TransportError` if a part of that is not kept any more.
        """
        if from_step <= self._committed or (not self.retain and from_step <= self._low):
            raise TransportError(
                f"step {from_step} is asked for again but only later ones are kept",
                remedy="restore a snapshot of the newest committed step",
            )
        self._acked[consumer] = min(self._acked[consumer], from_step - 1)
        self._low = min(self._acked.values())
        steps = dict.fromkeys(kept.step for kept in self._kept if kept.step > self._low)
        self._under_way = deque(steps)
        return [kept for kept in self._kept if kept.step >= from_step and consumer in kept.consumers]

    def _freed(self) -> list[T]:
        limit = min(self._low, self._committed) if self.retain else self._low
        kept, freed = self._kept, []
        while kept and kept[0].step <= limit:
            gone = kept.popleft()
            self.kept_bytes -= gone.nbytes
            if gone.item is not None:
                freed.append(gone.item)
        return freed


class _Source:
    """What is known of one producer rank: its generation, and the step and chunk that it may send next."""

    __slots__ = ("chunk", "generation", "step")

    def __init__(self) -> None:
        self.generation = 0
        self.step = 0
        self.chunk = 0


class InEdgeState(Generic[T]):
    """One consumer rank's end: gathers the chunks of each of `sources`, in their order, step by step."""

    def __init__(self, sources: Sequence[int], from_step: int = 0) -> None:
        """`from_step`: values of earlier producer steps are duplicates."""
        self.sources = tuple(sources)
        self._index = {source: position for position, source in enumerate(self.sources)}
        self._heads = [_Source() for _ in self.sources]
        for head in self._heads:
            head.step = from_step
        self._chunks: dict[int, list[list[T]]] = {}
        self._ended: dict[int, int] = {}

    def accept(self, source: int, generation: int, step: int, chunk: int, last: bool, item: T | None) -> bool:
        """Take a chunk (`item` None: only the end of the value). False if it is a duplicate or from a dead generation.

        Raises `TransportError` for an unknown producer and for a chunk that leaves a gap.
        """
        position = self._index.get(source)
        if position is None:
            raise TransportError(f"rank {source} is no producer of this edge", remedy="all ranks must run one plan")
        head = self._heads[position]
        if generation < head.generation:
            return False
        head.generation = generation
        if step < head.step or (step == head.step and chunk < head.chunk):
            return False
        if chunk != (head.chunk if step == head.step else 0) or (step > head.step and head.chunk):
            raise TransportError(f"chunk {chunk} of step {step} follows chunk {head.chunk - 1} of step {head.step}")
        chunks = self._chunks.get(step)
        if chunks is None:
            chunks = self._chunks[step] = [[] for _ in self.sources]
            self._ended[step] = 0
        if item is not None:
            chunks[position].append(item)
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

    def chunk(self, step: int, position: int, index: int) -> T | None:
        """Chunk `index` of source number `position`, or None if it has not come (or does not exist)."""
        chunks = self._chunks.get(step)
        return chunks[position][index] if chunks is not None and index < len(chunks[position]) else None

    def ended(self, step: int, position: int) -> bool:
        """Whether source number `position` has sent all its chunks of `step`."""
        return self._heads[position].step > step

    def missing(self, step: int) -> tuple[int, ...]:
        """The producers whose value of `step` has not come completely."""
        return tuple(s for position, s in enumerate(self.sources) if not self.ended(step, position))
