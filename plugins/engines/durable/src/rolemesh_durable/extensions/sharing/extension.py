"""Rows by demand in one rank: it makes its items of a call, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions import Extension
from rolemesh_durable.extensions.sharing.shared_rows import SharedRows
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.rank.services import Rank

__all__ = ["RankSharing", "Sharing"]


class Sharing(Extension):
    """The extension. It takes part in ranks that have a call with `Balanced` rows."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        """Return the part of a rank that shares the rows of a call with other ranks of its role."""
        return RankSharing(rank) if rank.ports.mates else None


class RankSharing(RankExtension):
    """The shared calls of one rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._mates = rank, rank.ports.mates

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs `method` for each item that this rank takes."""
        mates = self._mates.get(op.id)
        return method if mates is None else SharedRows(mates, self._rank).shared(method, op)

    def may_yield_nothing(self, op: OpCall) -> bool:
        """Return True: other ranks may make all items of a shared call."""
        return op.id in self._mates

    def before_call(self, op: OpCall, step: int) -> None:
        """Wait until all mates have reported their items."""
        mates = self._mates.get(op.id)
        if mates is not None:
            mates.await_told()
