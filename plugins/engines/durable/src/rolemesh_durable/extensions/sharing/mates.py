"""A rank among its mates, with which it shares the rows of a call: it takes items, and tells the mates."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.extensions.sharing.states import SharingState
from rolemesh_durable.protocol.metrics.item_reports import ItemReports
from rolemesh_durable.protocol.rank.page import WAITING
from rolemesh_durable.protocol.rank.ports import Ports

__all__ = ["Mates", "Message", "Say", "decoded"]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(tuple[int, dict[int, Any]]).decode
Message: TypeAlias = tuple[int, int, int, int]
"""Kind, edge, step and item of a message between mates."""
MESSAGE = struct.Struct("<BxxxIqq")
"""A `Message`, encoded."""
Say: TypeAlias = Callable[[str, int, bytes], None]
"""``say(role, rank, body)`` sends a message to the same part of another rank."""

ASKS, TAKES, TOLD = range(3)
"""Kinds of messages: report your items from this step on; I take this item; my report is complete."""


class Mates:
    """The other ranks that take items of the same edge."""

    def __init__(self, edge: Edge, ports: Ports[Any], say: Say) -> None:
        site, size = ports.mail.site, ports.job.world_sizes[ports.mail.site.role]
        self.edge, self._mail, self._role, self._waits, self._send = edge, ports.mail, site.role, ports.waits, say
        steals = not _is_logged(ports.job.graph, ports.job.graph.ops[edge.dst])
        self.sharing = SharingState(site.rank, size, ports.resume, steals=steals)
        self._mates = [rank for rank in range(size) if rank != site.rank]
        self._asked = dict.fromkeys(self._mates, -1)
        self._pending: dict[int, tuple[int, int]] = {}
        self._made: set[int] = set()
        self._reports: dict[int, tuple[int, ItemReports]] = {}
        """The number of items of each uncommitted step, and the reports of the items that this rank has made."""

    def rewire(self) -> None:
        """Note that addresses have changed: ask the mates that have not reported, and send the answers that waited."""
        for mate in self._mates:
            generation = self._mail.generation(self._role, mate)
            self.sharing.restarted(mate, generation)
            if mate in self.sharing.silent and generation > self._asked[mate]:
                self._asked[mate] = generation
                self._say(mate, ASKS, self.sharing.first)
        pending, self._pending = self._pending, {}
        for mate, (generation, step) in pending.items():
            self.message(ASKS, mate, generation, step, 0)

    def message(self, kind: int, mate: int, generation: int, step: int, item: int) -> None:
        """Handle a message of a mate. The answer waits until the mate's address is known."""
        if kind == TAKES:
            self.sharing.heard(mate, generation, step, item)
        elif kind == TOLD:
            for at, taken in self.sharing.told(mate, generation):
                self._say(mate, TAKES, at, taken)
        elif generation > self._mail.generation(self._role, mate):
            self._pending[mate] = generation, step
        else:
            for at, taken in self.sharing.asked(mate, generation, step):
                self._say(mate, TAKES, at, taken)
            self._say(mate, TOLD, step)

    def taken(self, step: int) -> bytes:
        """Return the items of `step` that this rank has made, with their reports, for `remember`."""
        return encode(self._reports.get(step, (0, {})))

    def remember(self, step: int, items: bytes) -> None:
        """Note the items of `step` that a former generation of this rank finished. The log has their results."""
        self._made.add(step)
        self._reports[step] = decode(items)
        self.sharing.remember(step, self._reports[step][1])

    def committed(self, step: int) -> None:
        """Forget the reports of steps up to `step`, which is committed."""
        self.sharing.committed(step)
        for at in [at for at in self._reports if at <= step]:
            del self._reports[at]

    def await_told(self) -> None:
        """Wait until every mate has reported its items. Raises `Stopping`."""
        sharing = self.sharing
        self._waits.until(lambda: sharing.informed, WAITING, self.edge.id)

    def made(self, step: int, count: int, reports: ItemReports) -> tuple[int, ItemReports]:
        """Note that this rank has made its items of `step`, out of `count`, with these reports.

        Returns the reports that count. If the log has the items, those are the reports of a former generation.
        """
        if step not in self._made:
            own = self.sharing.own(step)
            self._reports[step] = count, {item: reports.get(item, ({}, {})) for item in own}
        return self._reports[step]

    def is_made(self, step: int) -> bool:
        """Return True if the log has this rank's results of `step`."""
        return step in self._made

    def take(self, step: int, count: int) -> int | None:
        """Take an item of `step`, out of `count`, and tell the mates; None if all are taken."""
        item = self.sharing.take(step, count)
        if item is not None:
            for mate in self.sharing.listeners:
                self._say(mate, TAKES, step, item)
        return item

    def _say(self, mate: int, kind: int, step: int, item: int = 0) -> None:
        self._send(self._role, mate, MESSAGE.pack(kind, self.edge.id, step, item))


def _is_logged(graph: LogicalGraph, op: OpCall) -> bool:
    """Return True if ranks log the outcomes of calls that `op` may make."""
    return any(spec.logged for role in op.calls for spec in graph.services[role].values())


def decoded(body: bytes) -> Message:
    """Decode a message. Raises `struct.error`."""
    kind, edge, step, item = MESSAGE.unpack(body)
    return kind, edge, step, item
