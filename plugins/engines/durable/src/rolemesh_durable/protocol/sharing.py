"""Sharing by demand: which rank does which item of a step, decided by the ranks themselves; and the consumer's end.

Every rank of the role has all rows, so who does an item is all that is to be settled. A rank takes the front of its own
section, then the back of whoever has most left (work stealing: Blumofe and Leiserson 1999, "Scheduling multithreaded
computations by work stealing"), and tells its mates, who need not answer: nobody waits for a rank that is in its
operator. Two that take the same item at the same moment both do it, the consumer uses one, and its metrics count once
(`protocol.item_reports`). It is rare, as a rank steals only when it has finished an item of the step, or has waited for
a moment (`rank.shared_rows`).

A rank is through with a step once all of its items are taken, by itself or by a mate: then what it has made is its part
of the value, and it goes on. What a mate took and had not made when it died is not forgotten: that mate, restored to
the step before, is not through with it, and does whatever nobody else says to have. So does every rank that is not
through either. Nothing of this is logged. Why no item is lost: a rank believes only what mates say that they take
themselves, and the one that is through last believes only those who live, or whose successors are through after they
have heard it; `tests/simulation` looks for a schedule that breaks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rolemesh_durable.protocol.edge import InEdgeState

__all__ = ["ItemsIn", "Sharing"]

T = TypeVar("T")


class Sharing:
    """What one rank knows of who does what, from the step on to which it is restored."""

    def __init__(self, rank: int, size: int, resume: int = -1) -> None:
        """Rank `rank` of `size` goes on after step `resume`."""
        self._rank, self._size, self._from = rank, size, resume + 1
        self._generations = {mate: -1 for mate in range(size) if mate != rank}
        self._silent = set(self._generations)
        self._listeners: dict[int, int] = {}
        self._claims: dict[int, dict[int, set[int]]] = {}
        self._taken: dict[int, bytearray] = {}
        """Of the steps that this rank has begun which items are taken, by whomever."""

    # --------------------------------------------------------------------------------------------------- of the mates

    @property
    def first(self) -> int:
        """The first step of which mates are to tell what they have taken."""
        return self._from

    @property
    def informed(self) -> bool:
        """Whether every mate has told what it has taken: nothing is taken before."""
        return not self._silent

    @property
    def silent(self) -> tuple[int, ...]:
        """The mates that have not."""
        return tuple(sorted(self._silent))

    @property
    def listeners(self) -> tuple[int, ...]:
        """The mates that are told what this rank takes."""
        return tuple(self._listeners)

    def asked(self, mate: int, generation: int, step: int) -> list[tuple[int, int]]:
        """`mate`, in `generation`, goes on at `step`: what it had taken from there on is free again. Returns, as (step,
        item), what it must be told."""
        if generation < self._generations[mate]:
            return []
        if generation > self._generations[mate]:
            self._generations[mate] = generation
            for at, claims in self._claims.items():
                if at >= step and mate in claims:
                    del claims[mate]
                    self._taken.pop(at, None)
        return self._listen(mate, generation, step)

    def restarted(self, mate: int, generation: int) -> None:
        """`mate` is in `generation` now: a new one is told nothing before it asks."""
        if self._listeners.get(mate, generation) < generation:
            del self._listeners[mate]

    def told(self, mate: int, generation: int) -> list[tuple[int, int]]:
        """`mate` has told all that it had taken. Returns, as (step, item), what it must be told in return.

        A mate that outlived a former generation of this rank has no reason to ask: without an answer it would do again
        what this rank does, in every step until the job ends.
        """
        if generation < self._generations[mate]:
            return []
        self._silent.discard(mate)
        return self._listen(mate, generation, self._from) if self._listeners.get(mate, -1) < generation else []

    def _listen(self, mate: int, generation: int, step: int) -> list[tuple[int, int]]:
        """Add `mate` to the listeners. Return the items that this rank has taken from `step` on."""
        self._listeners[mate] = generation
        own = [(at, claims[self._rank]) for at, claims in self._claims.items() if at >= step and self._rank in claims]
        return sorted((at, item) for at, items in own for item in items)

    def heard(self, mate: int, generation: int, step: int, item: int) -> None:
        """`mate` takes an item. What a dead generation has said is dropped."""
        if generation >= self._generations[mate]:
            self._claim(mate, step, item)

    # ------------------------------------------------------------------------------------------------------- of items

    def own(self, step: int) -> list[int]:
        """The items of `step` that this rank has taken."""
        return sorted(self._claims.get(step, {}).get(self._rank, ()))

    def remember(self, step: int, items: Iterable[int]) -> None:
        """A former generation of this rank had taken these items of `step`, and its log has what it made of them."""
        for item in items:
            self._claim(self._rank, step, item)

    def take(self, step: int, count: int) -> int | None:
        """The item of `step`, of `count` items, that this rank is to do now; None if all are taken."""
        item = self._choose(self._begun(step, count))
        if item < 0:
            return None
        self._claim(self._rank, step, item)
        return item

    def may_collide(self, step: int, count: int) -> bool:
        """Whether `take` would give an item of a mate's section: that mate may take it at this moment."""
        low, high = count * self._rank // self._size, count * (self._rank + 1) // self._size
        item = self._choose(self._begun(step, count))
        return item >= 0 and not low <= item < high

    def _begun(self, step: int, count: int) -> bytearray:
        """Which items of `step` are taken."""
        taken = self._taken.get(step)
        if taken is None:
            taken = self._taken[step] = bytearray(count)
            for items in self._claims.get(step, {}).values():
                self._mark(step, items)
        return taken

    def _choose(self, taken: bytearray) -> int:
        """The next item that nobody has, -1 if there is none."""
        size, count = self._size, len(taken)
        sections = [(count * rank // size, count * (rank + 1) // size) for rank in range(size)]
        own = taken.find(0, *sections[self._rank])
        if own >= 0:
            return own
        after = sections[self._rank + 1 :] + sections[: self._rank]
        return taken.rfind(0, *max(after, key=lambda section: taken.count(0, *section))) if after else -1

    def committed(self, step: int) -> None:
        """Nobody is restored to a step before this one: forget who did what until then."""
        for at in [at for at in self._claims if at <= step]:
            del self._claims[at]
            self._taken.pop(at, None)

    def _claim(self, rank: int, step: int, item: int) -> None:
        self._claims.setdefault(step, {}).setdefault(rank, set()).add(item)
        self._mark(step, (item,))

    def _mark(self, step: int, items: Iterable[int]) -> None:
        taken = self._taken.get(step, bytearray())
        for item in items:
            if item < len(taken):
                taken[item] = 1


class ItemsIn(InEdgeState[T]):
    """The consumer's end of an edge whose values are made by demand: which items a source sends is not fixed.

    A source that is restarted may share a step out in another way, together with its mates. So what its dead generation
    has sent and nobody has used is dropped, and asked for again; what is put together of parts from before and after is
    checked for completeness by whoever uses it.
    """

    def __init__(self, sources: Sequence[int], from_step: int = 0, *, revocable: bool = False) -> None:
        super().__init__(sources, from_step, revocable=revocable)
        self._first = from_step

    def restart_source(self, source: int, generation: int) -> int:
        """As for any edge, but asks again for all that has not been taken."""
        position = self._position(source)
        head = self._heads[position]
        if generation > head.generation:
            for step, chunks in self._chunks.items():
                self._ended[step] -= self.ended(step, position)
                chunks[position].clear()
            head.generation, head.step, head.chunk = generation, self._first, 0
        return head.step

    def take(self, step: int) -> list[list[T]]:
        """The chunks of `step`, which are used now."""
        self._first = step + 1
        return super().take(step)
