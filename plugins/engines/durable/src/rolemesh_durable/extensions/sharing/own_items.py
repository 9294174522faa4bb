"""The items of a rank that takes none of others: those of its step, and those of later steps that have begun early.

A step lasts as long as its longest item. A rank that has room meanwhile begins items of later steps. This changes no
message between ranks: each item is the rank's own, and its calls have the same keys whenever they are made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from copy import deepcopy
from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh.graph.routes import by_demand
from rolemesh_durable.extensions.sharing.mates import Mates
from rolemesh_durable.extensions.sharing.sharer import Sharer
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_runtime.items import Items, apart

__all__ = ["OwnItems"]


class OwnItems:
    """The items of one call that this rank makes. A task makes an item; tasks of later steps outlast the call."""

    def __init__(
        self, mates: Mates, rank: Sharer, method: Callable[..., Coroutine[Any, Any, Any]], op: OpCall, items: Items
    ) -> None:
        how = by_demand(mates.edge.dst_partition)
        assert how is not None
        self._mates, self._method, self._op, self._items = mates, method, op, items
        self._rows, self._several, self._ahead = how.rows, how.concurrency, how.ahead
        self._ctx, self._ports, self._loop = rank.ctx, rank.ports, rank.tasks.loop
        self._tasks: dict[tuple[int, int], asyncio.Task[tuple[Any, ...]]] = {}
        """The tasks by step and item, until their results are taken."""
        self._looked = -1
        """The newest step whose items are in `_waiting` or have begun."""
        self._waiting: deque[tuple[int, int, Mapping[str, Any]]] = deque()
        """The items that have not begun, in order: step, item, and the arguments of the step."""

    def made(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the items of the present step as they are finished. Raises `Stopping`, and what a task raises."""
        step, count = self._ctx.step, apart(arguments[self._mates.edge.param], self._rows)[1]
        left: set[tuple[int, int]] = set()
        while not self._mates.is_made(step) and (item := self._mates.take(step, count)) is not None:
            left.add((step, item))
        known = self._tasks.keys() | {(at, item) for at, item, _ in self._waiting}
        self._waiting.extend((step, item, arguments) for _, item in sorted(left - known))
        self._looked = max(self._looked, step)
        try:
            while left:
                self._look()
                if not (done := [each for each in left if each in self._tasks and self._tasks[each].done()]):
                    self._loop.until_one_ends([task for task in self._tasks.values() if not task.done()])
                for each in done:
                    left.discard(each)
                    yield self._tasks.pop(each).result()
        except BaseException:
            self._loop.cancel([task for task in self._tasks.values() if not task.done()])
            raise

    def _look(self) -> None:
        """Handle incoming messages, and begin items while there is room. Raises `Stopping`."""
        self._ports.waits.look()
        while sum(not task.done() for task in self._tasks.values()) < self._several:
            if not self._waiting and not self._next_step():
                return
            step, item, arguments = self._waiting.popleft()
            self._tasks[step, item] = self._loop.begin(
                self._make(item, arguments), CallSequence(self._op, step, f".{item}")
            )

    def _next_step(self) -> bool:
        """Put the items of the next step into `_waiting`, if its input has come. Return False if there are none."""
        step = self._looked + self._op.every
        inputs = self._ports.inputs[self._op.id]
        if step > self._ctx.step + self._ahead * self._op.every or self._mates.is_made(step) or len(inputs) > 1:
            return False
        ((param, port),) = inputs
        rows = port.early(step)
        if rows is None:
            return False
        # The slot of a value may be reused while the task runs.
        arguments = {**self._op.constants, param: deepcopy(rows)}
        self._looked = step
        section = self._mates.sharing.section(apart(rows, self._rows)[1])
        self._waiting.extend((step, item, arguments) for item in section)
        return bool(section)

    async def _make(self, item: int, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        with self._items.one(arguments, item) as hand:
            hand.made = await self._method(**hand.given)
        sent: tuple[Any, ...] = hand.sent
        return sent
