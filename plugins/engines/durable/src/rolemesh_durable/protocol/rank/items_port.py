"""The consumer's end of an edge whose value was shared out by demand: the rows in the order of the source."""

from __future__ import annotations

from typing import Any

from rolemesh_durable.protocol.rank.effects import Arrival
from rolemesh_durable.protocol.rank.in_port import InPort
from rolemesh_durable.protocol.sharing import ItemsIn

__all__ = ["ItemsPort"]


class ItemsPort(InPort):
    """One input of an operator call. Its value is there when all of its items are, whoever has made them."""

    State = ItemsIn[Arrival]

    def take(self, step: int) -> Any:
        """The rows of all items; waits for them."""
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
        """None as long as an item is missing: from mates that share out anew, all parts may be there without it."""
        if not self.state.ready(made):
            return None
        return self._read(made, self.state.peek(made))
