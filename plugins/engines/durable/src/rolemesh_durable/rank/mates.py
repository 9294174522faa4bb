"""A rank among the mates with which it shares a call's rows out: the words of `protocol.sharing`, from rank to rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import msgspec

from rolemesh.api.partition import Balanced
from rolemesh.api.workload import RankContext
from rolemesh.graph.items import Items, apart
from rolemesh.graph.logical import Edge, OpCall
from rolemesh_durable.dataplane.transport import SHARE, SHARES
from rolemesh_durable.protocol.item_reports import ItemReports
from rolemesh_durable.protocol.sharing import Sharing
from rolemesh_durable.rank.calls import Calls
from rolemesh_durable.rank.control import Stopping
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Line
from rolemesh_durable.rank.in_port import wait_until
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.port import port_of
from rolemesh_durable.rank.status_page import DONE, StatusPage

__all__ = ["Mates"]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[int, dict[int, Any]]).decode

FIRST_S = 0.02
"""Seconds for which a rank without items of its own (there are fewer items than ranks) lets the others begin."""
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
        self._reports: dict[int, tuple[int, ItemReports]] = {}
        """By uncommitted step: the number of its items, and the reports of the items that this rank has made."""

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
        """The items of `step` that this rank has made, and what was reported of them, for `remember`."""
        return encode(self._reports.get(step, (0, {})))

    def remember(self, step: int, items: bytes) -> None:
        """A former generation of this rank was through with `step`, and the log has what it made of `items`."""
        self._made.add(step)
        self._reports[step] = decode(items)
        self._sharing.remember(step, self._reports[step][1])

    def committed(self, step: int) -> None:
        """`step` is committed."""
        self._sharing.committed(step)
        for at in [at for at in self._reports if at <= step]:
            del self._reports[at]

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
                count = apart(arguments[param], how.rows)[1]
                taken = (item for item in self._chosen(ctx.step, count, lambda: True) if item is not None)
                chosen = calls.each_item(op, ctx.step, taken)
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
            yield from self._counted(calls.loop.each(begun, how.concurrency), op, ctx, count)

        return call_several

    def await_told(self) -> None:
        """Wait until every mate has told what it has taken. Raises `Stopping`."""
        sharing = self._sharing
        if not sharing.informed:
            wait_until(lambda: sharing.informed, self._edge.id, self._endpoint, self._status_page, self._meter)

    def _chosen(self, step: int, count: int, finished: Callable[[], bool]) -> Iterator[int | None]:
        """The items of `step` that this rank is to do, each when it is free for it. Raises `Stopping`.

        None: not before it has `finished` an item of the step. Ranks mostly begin a step together; one that took as
        many items at once as it may have in hand would take what its mates are taking.
        """
        begun, until = False, monotonic() + FIRST_S
        while step not in self._made:
            self._endpoint.flush()
            self._endpoint.pump()
            while not begun and self._sharing.may_collide(step, count) and (left := until - monotonic()) > 0:
                self._endpoint.pump(left)
                if self._endpoint.stopping:
                    break
            if self._endpoint.stopping:
                raise Stopping
            if begun and not finished() and self._sharing.may_collide(step, count):
                yield None
                continue
            item = self._sharing.take(step, count)
            if item is None:
                return
            for mate in self._sharing.listeners:
                self._say(mate, TAKES, step, item)
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
        if ctx.step not in self._made:
            own = self._sharing.own(ctx.step)
            self._reports[ctx.step] = count, {item: said.get(item, ({}, {})) for item in own}
        self._meter.made(op.label, ctx.step, *self._reports[ctx.step])

    def _say(self, mate: int, kind: int, step: int, item: int = 0) -> None:
        site = self._site
        frame = SHARES.pack(SHARE, kind, self._edge.id, site.rank, site.generation, step, item)
        self._endpoint.sender(site.role, mate).send(frame)
