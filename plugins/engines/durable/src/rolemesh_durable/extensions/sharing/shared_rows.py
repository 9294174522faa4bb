"""A call whose rows the ranks of a role share: each rank runs it on the items that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh.graph.routes import by_demand
from rolemesh_durable.extensions.sharing.mates import Mates
from rolemesh_durable.extensions.sharing.own_items import OwnItems
from rolemesh_durable.extensions.sharing.sharer import Sharer
from rolemesh_durable.protocol.metrics.item_reports import reports_record
from rolemesh_durable.protocol.rank.page import DONE, WAITING
from rolemesh_durable.rank.call_sequence import CallSequence
from rolemesh_durable.rank.port import port_of
from rolemesh_runtime.items import Items, apart

__all__ = ["SharedRows"]

FIRST_NS = 20_000_000
"""Nanoseconds that a rank without items of its own (there are fewer items than ranks) waits for the others to begin."""


class SharedRows:
    """The rows of one edge. Each rank of the role makes some of them."""

    def __init__(self, mates: Mates, rank: Sharer) -> None:
        self._edge, self._mates, self._rank = mates.edge, mates, rank
        self._ctx, self._waits, self._tasks = rank.ctx, rank.ports.waits, rank.tasks
        self._fields, self._record = rank.ports.fields, rank.record

    def shared(self, method: Callable[..., Any], op: OpCall) -> Callable[..., Iterator[tuple[Any, ...]]]:
        """Return a function that calls `method`, of `op`, with each item that this rank takes.

        Several coroutines run at once, `def` methods one after the other.
        """
        ctx, tasks = self._ctx, self._tasks
        param, how = self._edge.param, by_demand(self._edge.dst_partition)
        assert how is not None
        items = Items(ctx, param, how)

        if not inspect.iscoroutinefunction(method):

            def call(**arguments: Any) -> Iterator[tuple[Any, ...]]:
                count = apart(arguments[param], how.rows)[1]
                taken = (item for item in self._chosen(ctx.step, count, lambda: True) if item is not None)
                chosen = tasks.each(op, ctx.step, taken)
                return self._counted(items.run(method, arguments, chosen), op, count)

            return call

        if how.ahead and not self._mates.sharing.steals:
            own = OwnItems(self._mates, self._rank, method, op, items)
            return lambda **arguments: self._counted(own.made(arguments), op, apart(arguments[param], how.rows)[1])

        def call_several(**arguments: Any) -> Iterator[tuple[Any, ...]]:
            finished = 0

            async def begin(item: int) -> tuple[Any, ...]:
                nonlocal finished
                with items.one(arguments, item) as hand:
                    hand.made = await method(**hand.given)
                finished += 1
                sent: tuple[Any, ...] = hand.sent
                return sent

            count = apart(arguments[param], how.rows)[1]
            taken = self._chosen(ctx.step, count, lambda: finished > 0)
            begun = (None if item is None else (begin(item), CallSequence(op, ctx.step, f".{item}")) for item in taken)
            yield from self._counted(tasks.loop.each(begun, how.concurrency), op, count)

        return call_several

    def _chosen(self, step: int, count: int, finished: Callable[[], bool]) -> Iterator[int | None]:
        """Yield the items of `step` that this rank takes, each when the rank is free for it. Raises `Stopping`.

        Yield None while the rank has to finish an item of the step before it takes the next. Ranks mostly begin a step
        together, so a rank that takes several items at once would take those that its mates are taking.
        """
        begun, until, sharing = False, monotonic_ns() + FIRST_NS, self._mates.sharing
        while not self._mates.is_made(step):
            self._waits.look()
            if not begun:
                self._waits.until(lambda: not sharing.may_collide(step, count), WAITING, self._edge.id, deadline=until)
            if begun and not finished() and sharing.may_collide(step, count):
                yield None
                continue
            item = self._mates.take(step, count)
            if item is None:
                return
            begun = True
            yield item

    def _counted(self, made: Iterator[tuple[Any, ...]], op: OpCall, count: int) -> Iterator[tuple[Any, ...]]:
        """Yield the items that are `made`, of `count`, and pass on the operator's reports of each.

        Each item is progress, unless the operator reports progress itself.
        """
        ctx, fields = self._ctx, self._fields
        for done, item in enumerate(made):
            if fields[DONE] == (done or -1):
                fields[DONE] = done + 1
            yield item
        reports = port_of(ctx).take_items(ctx.step)
        found = self._mates.made(ctx.step, count, reports)
        self._record(reports_record(op.label, ctx.step, ctx.rank, *found))
