"""Rows that are shared out by demand, in a simulated rank: its calls, item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.conversations import begin_early
from tests.simulation.model import ROWS, Shape, Value, answers_of, made_of, rows_of, value_of

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import Edge, OpCall
from rolemesh.graph.routes import Part, Share
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_runtime import items

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["SimRows", "assembled", "make_item"]


def assembled(
    rank: SimRank, edge: Edge, made: int, chunks: Sequence[Sequence[Any]], shape: Shape, index: int
) -> Value | None:
    """The value that consumer rank `index` of a layout gets from the items that have come, or None if some have not."""
    rows = items.assembled(item for part in chunks for item in part)
    if rows is None:
        return None
    count = shape.sizes[rank.key[0]]
    share = shape.routes[edge.id].sends_to(0, index)
    total = next(item[3] for part in chunks for item in part)
    low, high = Part(0, index, index + 1, count).bounds(total)
    wanted = high - low if isinstance(share, Share) else total
    rank.world.checks.collated(rank, edge, made, rows, wanted)
    return value_of(rows)


class SimRows(RankExtension):
    """Gives shared calls rows in place of simulated values. It follows the shipped `RankSharing`, which it wraps."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    def wrap(self, op: OpCall, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `method` with the rows of the shared value."""
        rank, mates = self._rank, self._rank.shared.mates.get(op.id)
        if mates is None:
            return method

        def call(**given: Any) -> Any:
            taken = rank.values_of(op, given)
            return method(**taken | {mates.edge.param: rows_of(taken[mates.edge.param])})

        return call


def make_item(rank: SimRank, op: OpCall, step: int, given: dict[str, Any]) -> list[Value]:
    """Make the present item of a call, as a workload's method does."""
    world, mates, item = rank.world, rank.shared.mates[op.id], rank.ctx.item
    how = mates.edge.dst_partition
    assert isinstance(how, Balanced)
    mine = given[mates.edge.param]
    others = [value for param, value in given.items() if param != mates.edge.param] + answers_of(op, step, 0)
    world.checks.works(rank, op, step, item)
    rank.computes(op, step, 1 if world.chance(0.8) else 4)
    early = rank.calls.early.get((op.id, step, f".{item}"))
    if early is not None and early.rows != mine:
        world.fail("a conversation is repeated as it was", f"{rank.name} began item {item} of step {step} early")
    if any("turn" in rank.job.graph.services[role] for role in op.calls):
        begin_early(rank, op, step, mates)
    rank.calls.talk(op, step, f".{item}")
    made = [made_of(rank.mind, op, step, row, others) for row in mine]
    if op.role in rank.job.varying:
        nonce = world.nonce()
        made = [Value(hash((row.h, nonce)), row.shards, nonce) for row in made]
    # Eighths add up exactly: the shares of all items of a step are one.
    count = items.apart([0] * ROWS, how.rows)[1]
    rank.ctx.count(shares=(8 - count + 1 if item == 0 else 1) / 8)
    return made
