"""A call whose rows a rank shares out with its mates: it runs on the items that fall to this rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from rolemesh.api.workload import RankContext
from rolemesh.graph.items import Items, apart
from rolemesh.graph.logical import OpCall
from rolemesh.graph.routes import by_demand
from rolemesh_durable.protocol.rank.effects import Stopping
from rolemesh_durable.protocol.rank.mates import Mates
from rolemesh_durable.protocol.rank.page import DONE
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Line, Tasks
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.status_page import StatusPage

__all__ = ["SharedRows"]

FIRST_S = 0.02
"""Seconds for which a rank without items of its own (there are fewer items than ranks) lets the others begin."""


class SharedRows:
    """The rows of one edge, of which each rank of the role does some."""

    def __init__(self, mates: Mates, endpoint: Endpoint, status_page: StatusPage, meter: Meter) -> None:
        self._edge, self._mates, self._endpoint = mates.edge, mates, endpoint
        self._status_page, self._meter = status_page, meter

    def shared(
        self, method: Callable[..., Any], ctx: RankContext[Any], op: OpCall, tasks: Tasks
    ) -> Callable[..., Iterator[tuple[Any, ...]]]:
        """What calls `method`, of `op`, with one item after the other, as many as fall to this rank. Coroutines run
        several at a time."""
        param, how = self._edge.param, by_demand(self._edge.dst_partition)
        assert how is not None
        items = Items(ctx, param, how)

        if not inspect.iscoroutinefunction(method):

            def call(**arguments: Any) -> Iterator[tuple[Any, ...]]:
                count = apart(arguments[param], how.rows)[1]
                taken = (item for item in self._chosen(ctx.step, count, lambda: True) if item is not None)
                chosen = tasks.each(op, ctx.step, taken)
                return self._counted(items.run(method, arguments, chosen), op, ctx, count)

            return call

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
            begun = (None if item is None else (begin(item), Line(op, ctx.step, f".{item}")) for item in taken)
            yield from self._counted(tasks.loop.each(begun, how.concurrency), op, ctx, count)

        return call_several

    def _chosen(self, step: int, count: int, finished: Callable[[], bool]) -> Iterator[int | None]:
        """The items of `step` that this rank is to do, each when it is free for it. Raises `Stopping`.

        None: not before it has `finished` an item of the step. Ranks mostly begin a step together; one that took as
        many items at once as it may have in hand would take what its mates are taking.
        """
        begun, until = False, monotonic() + FIRST_S
        while not self._mates.is_made(step):
            self._endpoint.flush()
            self._endpoint.pump()
            while not begun and self._mates.sharing.may_collide(step, count) and (left := until - monotonic()) > 0:
                self._endpoint.pump(left)
                if self._endpoint.stopping:
                    break
            if self._endpoint.stopping:
                raise Stopping
            if begun and not finished() and self._mates.sharing.may_collide(step, count):
                yield None
                continue
            item = self._mates.take(step, count)
            if item is None:
                return
            begun = True
            yield item

    def _counted(
        self, made: Iterator[tuple[Any, ...]], op: OpCall, ctx: RankContext[Any], count: int
    ) -> Iterator[tuple[Any, ...]]:
        """The items that are `made`, of `count`, each of which is progress where the operator says nothing of its own
        itself. After the last, take what was reported of each."""
        fields = self._status_page.fields
        for done, item in enumerate(made):
            if fields[DONE] == (done or -1):
                fields[DONE] = done + 1
            yield item
        port = port_of(ctx)
        said, port.by_item = port.by_item, {}
        self._meter.made(op.label, ctx.step, *self._mates.made(ctx.step, count, said))
