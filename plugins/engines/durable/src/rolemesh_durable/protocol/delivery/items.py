"""Rows by demand: a step takes the value of `lag` steps before, put together from the items of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rolemesh_durable.protocol.delivery.exact import InPort
from rolemesh_durable.protocol.delivery.policy import ConsumerEnd, Delivery
from rolemesh_durable.protocol.edge import InEdgeState
from rolemesh_durable.protocol.rank.effects import Arrival, Effects

__all__ = ["Items", "ItemsIn", "ItemsPort"]

T = TypeVar("T")


class ItemsIn(InEdgeState[T]):
    """The consumer's end of an edge whose values are made by demand: the items of a source are not fixed.

    A restarted source may share a step out in another way, together with its mates. So the edge drops unused items of
    the source's dead generation, and asks for them again. The consumer checks a value that combines parts from before
    and after for completeness.
    """

    def __init__(self, sources: Sequence[int], from_step: int = 0, *, revocable: bool = False) -> None:
        super().__init__(sources, from_step, revocable=revocable)
        self._first = from_step

    def restart_source(self, source: int, generation: int) -> int:
        """As for any edge, but ask again for all values that no step has taken."""
        position = self._position(source)
        head = self._heads[position]
        if generation > head.generation:
            for step, chunks in self._chunks.items():
                self._ended[step] -= self.ended(step, position)
                chunks[position].clear()
            head.generation, head.step, head.chunk = generation, self._first, 0
        return head.step

    def settled(self, step: int) -> bool:
        """Return False: a restarted producer may share the step out in another way."""
        return False

    def take(self, step: int) -> list[list[T]]:
        """Return the chunks of `step`, which are used now."""
        self._first = step + 1
        return super().take(step)


class Items(Delivery):
    """A step takes the value of exactly `lag` steps before, put together from items."""

    kind = "items"

    def port(self, end: ConsumerEnd, effects: Effects[Any]) -> InPort:
        """The consumer's end in a rank."""
        return ItemsPort(self, end, effects)

    @property
    def may_owe(self) -> bool:
        """A restarted producer may share a step out in another way, so every snapshot is due."""
        return False


class ItemsPort(InPort):
    """One input of an operator call. Its value is complete when all items have come, from any rank."""

    State = ItemsIn[Arrival]

    def take(self, step: int) -> Any:
        """Return the rows of all items; waits for them."""
        made = step - self._lag
        if made in self._given:
            return self._given.pop(made)
        rows = self._await(made)
        self.state.take(made)
        return rows

    def await_all(self, step: int) -> None:
        """Wait until all items have come."""
        if step - self._lag not in self._given:
            self._await(step - self._lag)

    def _await(self, made: int) -> Any:
        while (rows := self._rows(made)) is None:
            self._wait_until(lambda: self._rows(made) is not None)
        return rows

    def _rows(self, made: int) -> Any | None:
        """Return the rows; None if an item is missing. When mates share rows again, all parts may come without it."""
        if not self.state.ready(made):
            return None
        return self._read(made, self.state.peek(made))
