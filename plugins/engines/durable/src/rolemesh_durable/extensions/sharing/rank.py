"""Rows by demand in one rank: it makes its items of a call, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.sharing.mates import Mates, Message, Say, decoded
from rolemesh_durable.extensions.sharing.shared_rows import SharedRows
from rolemesh_durable.extensions.sharing.sharer import Sharer
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.rank.channel import Receive
from rolemesh_durable.rank.services import Rank

__all__ = ["RankSharing", "part_of"]

CHANNEL = "sharing"
Open = Callable[[str, Receive], Say]


def part_of(rank: Rank) -> RankSharing | None:
    """Return the part of a rank that shares the rows of a call with other ranks of its role; None for any other."""
    part = RankSharing(Sharer(rank.ctx, rank.ports, rank.tasks, rank.record), rank.open_channel)
    return part if part.mates else None


class RankSharing(RankExtension):
    """The calls of one rank whose rows it shares by demand: it runs them item by item, with its mates in each call."""

    def __init__(self, rank: Sharer, open_channel: Open) -> None:
        """`open_channel` is `Rank.open_channel`."""
        self._rank, ports = rank, rank.ports
        self._early: list[tuple[int, int, Message]] | None = []
        """The messages that came before `opened`, each with its sender and generation; None afterwards."""
        send = open_channel(CHANNEL, self._receive)
        self.mates: dict[int, Mates] = {}
        """The mates, by operator call."""
        graph, role = ports.job.graph, ports.mail.site.role
        for edge in graph.edges:
            shares = graph.ops[edge.dst].role == role and delivery_of(edge).shared is not None
            if shares and edge.dst not in self.mates:
                self.mates[edge.dst] = mates = Mates(edge, ports, send)
                ports.annex(edge.dst, mates)
        self._of_edge = {mates.edge.id: mates for mates in self.mates.values()}

    def opened(self, resume: int) -> None:
        """Take the messages of mates from now on."""
        early, self._early = self._early or [], None
        for message in early:
            self._take(*message)
        self.rewired()

    def rewired(self) -> None:
        """Begin again with the new lives of mates."""
        for mates in self.mates.values():
            mates.rewire()

    def advanced(self, advance: Watermarks) -> None:
        """Forget the reports of committed steps."""
        for mates in self.mates.values():
            mates.committed(advance.committed)

    def may_yield_nothing(self, op: OpCall) -> bool:
        """Return True: other ranks may make all items of a shared call."""
        return op.id in self.mates

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `method` for each item that this rank takes."""
        mates = self.mates.get(op.id)
        return method if mates is None else SharedRows(mates, self._rank).shared(method, op)

    def before_call(self, op: OpCall, step: int) -> None:
        """Wait until all mates have reported their items."""
        mates = self.mates.get(op.id)
        if mates is not None:
            mates.await_told()

    def _receive(self, role: str, rank: int, generation: int, body: bytes) -> None:
        message = decoded(body)
        if self._early is None:
            self._take(rank, generation, message)
        else:
            self._early.append((rank, generation, message))

    def _take(self, rank: int, generation: int, message: Message) -> None:
        kind, edge, step, item = message
        self._of_edge[edge].message(kind, rank, generation, step, item)
