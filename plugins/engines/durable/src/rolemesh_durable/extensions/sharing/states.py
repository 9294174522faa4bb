"""Sharing by demand: the ranks of a role decide among themselves which rank does which item of a step. Pure.

The other ranks of the role are this rank's mates. Every rank has all rows, so the ranks only settle who does an item. A
rank takes items from the front of its own section. Then it takes them from the back of the mate with the most items
left (work stealing: Blumofe and Leiserson 1999, "Scheduling multithreaded computations by work stealing"). It tells its
mates, and needs no answer: no rank waits for a rank that is in its operator. If two ranks take the same item at the
same moment, both do it. The consumer uses one result, and the metrics count once (`protocol.metrics.item_reports`).
That is rare, because a rank steals only after it has finished an item of the step, or has waited for a moment
(`extensions.sharing.shared_rows`).

A rank takes no items of others if its operator calls services whose outcomes are logged (`ServiceSpec.logged`). Such an
item belongs to the rank that has the log. After a restart this rank repeats the item from the log; another rank would
make its calls a second time.

A rank has finished a step once all items are taken, by itself or by a mate. Then its results are its part of the value.
Items that a mate took and had not made when it died are not lost. The mate is restored to the step before, has not
finished the step, and does every item that no other rank claims. So does every rank that has not finished either. No
log records any of this. No item is lost, for two reasons. A rank believes only its mates' own claims. And the last rank
to finish believes only living ranks, or ranks whose successors finish after they have received its claims.
`tests/simulation` looks for a schedule that breaks this.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["SharingState"]


class SharingState:
    """One rank's knowledge of the items that each rank takes, from the step after its restore."""

    def __init__(self, rank: int, size: int, resume: int = -1, *, steals: bool = True) -> None:
        """Rank `rank` of `size` continues after step `resume`. Only with `steals` it takes items of other sections."""
        self._rank, self._size, self._from, self.steals = rank, size, resume + 1, steals
        self._generations = {mate: -1 for mate in range(size) if mate != rank}
        self._silent = set(self._generations)
        self._listeners: dict[int, int] = {}
        self._claims: dict[int, dict[int, set[int]]] = {}
        self._taken: dict[int, bytearray] = {}
        """The items that any rank has taken, by step that this rank has begun."""

    # --------------------------------------------------------------------------------------------------- of the mates

    @property
    def first(self) -> int:
        """The first step of which mates must report their items."""
        return self._from

    @property
    def informed(self) -> bool:
        """True if every mate has reported its items: this rank takes none before."""
        return not self._silent

    @property
    def silent(self) -> tuple[int, ...]:
        """The mates that have not reported their items."""
        return tuple(sorted(self._silent))

    @property
    def listeners(self) -> tuple[int, ...]:
        """The mates to which this rank sends each item that it takes."""
        return tuple(self._listeners)

    def asked(self, mate: int, generation: int, step: int) -> list[tuple[int, int]]:
        """Answer `mate`, which continues at `step` in `generation`. Its items from that step on are free again.

        Returns the items to send it, as (step, item).
        """
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
        """Note that `mate` is in `generation`. A new generation gets no messages before it asks."""
        if self._listeners.get(mate, generation) < generation:
            del self._listeners[mate]

    def told(self, mate: int, generation: int) -> list[tuple[int, int]]:
        """Note that `mate` has reported all its items. Returns the items to send it in return, as (step, item).

        A mate that outlived a former generation of this rank has no reason to ask. Without the answer it would do this
        rank's items again, in every step until the job ends.
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
        """Note that `mate` takes an item. Messages of a dead generation are dropped."""
        if generation >= self._generations[mate]:
            self._claim(mate, step, item)

    # ------------------------------------------------------------------------------------------------------- of items

    def section(self, count: int) -> range:
        """Return the items of this rank's section, out of `count`."""
        return range(count * self._rank // self._size, count * (self._rank + 1) // self._size)

    def own(self, step: int) -> list[int]:
        """Return the items of `step` that this rank has taken."""
        return sorted(self._claims.get(step, {}).get(self._rank, ()))

    def remember(self, step: int, items: Iterable[int]) -> None:
        """Note the items of `step` that a former generation of this rank took. The log has its results."""
        for item in items:
            self._claim(self._rank, step, item)

    def take(self, step: int, count: int) -> int | None:
        """Return the next item of `step` for this rank, out of `count`; None if all are taken."""
        item = self._choose(self._begun(step, count))
        if item < 0:
            return None
        self._claim(self._rank, step, item)
        return item

    def may_collide(self, step: int, count: int) -> bool:
        """Return True if `take` would return an item of a mate's section, which that mate may take at this moment."""
        low, high = count * self._rank // self._size, count * (self._rank + 1) // self._size
        item = self._choose(self._begun(step, count))
        return item >= 0 and not low <= item < high

    def _begun(self, step: int, count: int) -> bytearray:
        """Return which items of `step` are taken."""
        taken = self._taken.get(step)
        if taken is None:
            taken = self._taken[step] = bytearray(count)
            for items in self._claims.get(step, {}).values():
                self._mark(step, items)
        return taken

    def _choose(self, taken: bytearray) -> int:
        """Return the next item that no rank has taken; -1 if there is none."""
        size, count = self._size, len(taken)
        sections = [(count * rank // size, count * (rank + 1) // size) for rank in range(size)]
        own = taken.find(0, *sections[self._rank])
        if own >= 0 or not self.steals:
            return own
        after = sections[self._rank + 1 :] + sections[: self._rank]
        return taken.rfind(0, *max(after, key=lambda section: taken.count(0, *section))) if after else -1

    def committed(self, step: int) -> None:
        """Forget the items up to `step`: no rank is restored to an earlier step."""
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
