"""A rank among the mates with which it shares a call's rows out: the words of `protocol.sharing`, from rank to rank."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from rolemesh.api.partition import Balanced
from rolemesh.api.workload import RankContext
from rolemesh.graph.items import Items, apart
from rolemesh.graph.logical import Edge, OpCall
from rolemesh_durable.dataplane.transport import SHARE, SHARES
from rolemesh_durable.protocol.sharing import Sharing
from rolemesh_durable.rank.calls import Calls
from rolemesh_durable.rank.control import Stopping
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Line
from rolemesh_durable.rank.in_port import wait_until
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import DONE, StatusPage

__all__ = ["Mates"]

ASKS, TAKES, TOLD = range(3)
"""Kinds of words: tell me what you have taken from this step on; I take this item; that was all."""


class Mates:
    """The other ranks that take items of the same edge."""

    def __init__(
        self, edge: Edge, size: int, resume: int, *, endpoint: Endpoint, status_page: StatusPage, meter: Meter
    ) -> None:
        """The rank goes on after step `resume`; its role has `size` ranks."""
        self._edge, self._endpoint, self._site = edge, endpoint, endpoint.site
        self._status_page, self._meter = status_page, meter
        self._sharing = Sharing(endpoint.site.rank, size, resume)
        self._mates = [rank for rank in range(size) if rank != endpoint.site.rank]
        self._asked = dict.fromkeys(self._mates, -1)
        self._pending: dict[int, tuple[int, int]] = {}
        self._made: set[int] = set()

    def open(self) -> None:
        """Listen to them from now on."""
        self._endpoint.register_mates(self._edge.id, self)

    def rewire(self) -> None:
        """Addresses have changed: ask those who have not told anything, and answer who could not be reached before."""
        for mate in self._mates:
            generation = self._endpoint.generation(self._site.role, mate)
            self._sharing.restarted(mate, generation)
            if mate in self._sharing.silent and generation > self._asked[mate]:
                self._asked[mate] = generation
                self._say(mate, ASKS, self._sharing.first)
        pending, self._pending = self._pending, {}
        for mate, (generation, step) in pending.items():
            self.message(ASKS, mate, generation, step, 0)

    def message(self, kind: int, mate: int, generation: int, step: int, item: int) -> None:
        """Take what a mate has said; one whose address is not known yet is answered later."""
        if kind == TAKES:
            self._sharing.heard(mate, generation, step, item)
        elif kind == TOLD:
            for at, taken in self._sharing.told(mate, generation):
                self._say(mate, TAKES, at, taken)
        elif generation > self._endpoint.generation(self._site.role, mate):
            self._pending[mate] = generation, step
        else:
            for at, taken in self._sharing.asked(mate, generation, step):
                self._say(mate, TAKES, at, taken)
            self._say(mate, TOLD, step)

    def taken(self, step: int) -> bytes:
        """The items of `step` that this rank has taken, for `remember`."""
        return array("I", self._sharing.own(step)).tobytes()

    def remember(self, step: int, items: bytes) -> None:
        """A former generation of this rank was through with `step`, and the log has what it made of `items`."""
        self._made.add(step)
        self._sharing.remember(step, array("I", items))

    def committed(self, step: int) -> None:
        """`step` is committed."""
        self._sharing.committed(step)

    def shared(
        self, method: Callable[..., Any], ctx: RankContext[Any], op: OpCall, calls: Calls
    ) -> Callable[..., Iterator[tuple[Any, ...]]]:
        """What calls `method`, of `op`, with one item after the other, as many as fall to this rank. Coroutines run
        several at a time."""
        param, how = self._edge.param, self._edge.dst_partition
        assert isinstance(how, Balanced)
        items = Items(ctx, param, how)

        if not inspect.iscoroutinefunction(method):

            def call(**arguments: Any) -> Iterator[tuple[Any, ...]]:
                chosen = calls.each_item(op, ctx.step, self._chosen(ctx.step, apart(arguments[param], how.rows)[1]))
                return self._counted(items.run(method, arguments, chosen))

            return call

        def call_several(**arguments: Any) -> Iterator[tuple[Any, ...]]:
            async def begin(item: int) -> tuple[Any, ...]:
                with items.one(arguments, item) as hand:
                    hand.made = await method(**hand.given)
                sent: tuple[Any, ...] = hand.sent
                return sent

            chosen = self._chosen(ctx.step, apart(arguments[param], how.rows)[1])
            begun = ((begin(item), Line(op, ctx.step, f".{item}")) for item in chosen)
            yield from self._counted(calls.loop.each(begun, how.concurrency))

        return call_several

    def await_told(self) -> None:
        """Wait until every mate has told what it has taken. Raises `Stopping`."""
        sharing = self._sharing
        if not sharing.informed:
            wait_until(lambda: sharing.informed, self._edge.id, self._endpoint, self._status_page, self._meter)

    def _chosen(self, step: int, count: int) -> Iterator[int]:
        """The items of `step` that this rank is to do, each when it is free for it. Raises `Stopping`."""
        while step not in self._made:
            self._endpoint.flush()
            self._endpoint.pump()
            if self._endpoint.stopping:
                raise Stopping
            item = self._sharing.take(step, count)
            if item is None:
                return
            for mate in self._sharing.listeners:
                self._say(mate, TAKES, step, item)
            yield item

    def _counted(self, made: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The items that are `made`, each of which is progress where the operator says nothing of its own itself."""
        fields = self._status_page.fields
        for done, item in enumerate(made):
            if fields[DONE] == (done or -1):
                fields[DONE] = done + 1
            yield item

    def _say(self, mate: int, kind: int, step: int, item: int = 0) -> None:
        site = self._site
        frame = SHARES.pack(SHARE, kind, self._edge.id, site.rank, site.generation, step, item)
        self._endpoint.sender(site.role, mate).send(frame)
