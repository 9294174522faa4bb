"""Which items a step takes that takes what is finished first, of rows that were shared out by demand. Pure.

A consumer rank takes at each step as many items as one step has for it: first those that would be too old at the next
step, then whichever have come, in the order in which they came. By any step at least as many are made as have been
taken, so nobody waits for what is not due; and nothing is dropped. After a restart a step takes the same again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

__all__ = ["FirstChoice", "Piece", "Taken", "share_of"]

Piece: TypeAlias = tuple[int, int]
"""The step that an item is of, and its number."""


def share_of(rank: int, ranks: int, *, size: int, items: int, total: int) -> range:
    """The items in which rank `rank` of `ranks` has rows, if each gets an equal part of `total` rows, in `items` items
    of `size` rows; at least one, maybe without rows."""
    low, high = total * rank // ranks, total * (rank + 1) // ranks
    begin = min(low // size, items - 1)
    return range(begin, max(begin + 1, -(-high // size)))


class Taken(NamedTuple):
    """What a rank has taken after a step: `took` in the step, all of the steps up to `released`, and `beyond`."""

    took: tuple[Piece, ...] = ()
    beyond: tuple[Piece, ...] = ()
    released: int = -1


class FirstChoice:
    """One consumer rank's choices: `took` is what `step` takes."""

    def __init__(
        self, lag: int, *, taken: Taken | None = None, again: Mapping[int, Sequence[Piece]] | None = None
    ) -> None:
        """`taken`: after the step to which the rank is restored. `again`: by step what a former generation took."""
        self._lag, self._again = lag, again or {}
        self._taken = set(taken.beyond if taken is not None else ())
        self.released = taken.released if taken is not None else -1
        """All items of steps up to this one are taken."""
        self.step = -1
        self.took: tuple[Piece, ...] = ()
        self._wanted: dict[int, frozenset[int]] = {}
        self._ready: dict[Piece, None] = {}
        self._each = 0

    @property
    def taken(self) -> Taken:
        """What is to be remembered."""
        return Taken(self.took, tuple(sorted(self._taken)), self.released)

    def came(self, step: int, number: int, wanted: Collection[int]) -> bool:
        """Item `number` of `step` has come, of which this rank gets those in `wanted`; whether it is one of them, and
        new. Raises `ValueError` for steps of different size."""
        if step <= self.released:
            return False
        self._each = self._each or len(wanted)
        if len(wanted) != self._each:
            raise ValueError(f"step {step} has {len(wanted)} items for this rank, others {self._each}")
        self._wanted.setdefault(step, frozenset(wanted))
        piece = step, number
        if number not in wanted or piece in self._taken or piece in self._ready:
            return False
        self._ready[piece] = None
        return True

    def choose(self, step: int) -> bool:
        """Whether there is enough for `step`."""
        found = self._again.get(step)
        if found is None:
            found = self._choice(step - self._lag)
        if not found or not all(tuple(piece) in self._ready for piece in found):
            return False
        self.step, self.took = step, tuple(sorted((made, number) for made, number in found))
        for piece in self.took:
            del self._ready[piece]
        self._taken.update(self.took)
        while whole := {(self.released + 1, number) for number in self._wanted.get(self.released + 1, ())}:
            if not whole <= self._taken:
                break
            self._taken -= whole
            self.released += 1
            del self._wanted[self.released]
        return True

    def _choice(self, due: int) -> list[Piece]:
        if due > self.released and due not in self._wanted:
            return []
        must = [(due, number) for number in self._wanted.get(due, ()) if (due, number) not in self._taken]
        if any(piece not in self._ready for piece in must):
            return []
        rest = [piece for piece in self._ready if piece not in must][: self._each - len(must)]
        return must + rest if self._each == len(must) + len(rest) else []
