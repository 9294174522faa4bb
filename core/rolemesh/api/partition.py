"""How a value lies over the ranks of a role (OneFlow's SBP signatures, plus named shards).

A partition is declared per operator input and output; `rolemesh.graph.routes` derives from the
producer's and the consumer's who sends what to whom. Yuan et al., "OneFlow: Redesign the
Distributed Deep Learning Framework from Scratch", arXiv:2110.15032, section 3.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class Split(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds a contiguous part along `axis` (0: the rows of a `Batch`), in rank order;
    parts may be uneven."""

    axis: int = 0


class Broadcast(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds the whole, equal value."""


class Partial(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds an addend of equal shape; the value is their `op` over the ranks."""

    op: Literal["sum", "mean"] = "sum"


class Sharded(msgspec.Struct, frozen=True, tag=True):
    """`rolemesh.api.batch.Shards`: named tensors, each rank holding a block with its global shape
    and offsets.

    As a consumer's partition over N ranks, rank n wants block n of ``torch.chunk(tensor, N, dim)``,
    FSDP2's layout. With `dim` None each rank wants all tensors in the pieces that the producer's
    ranks hold, as a ``dict[str, list[Shard]]``: `Shard.into` copies each straight to its place.
    """

    dim: int | None = 0


class Balanced(msgspec.Struct, frozen=True, tag=True):
    """Of an input: the rows are shared out by demand. A step's value is cut into items of `rows`
    rows, and each rank takes the next one when it is free; ``async def`` operators may have
    `concurrency` of them in hand at once.

    The operator is called once per item (`rolemesh.api.workload.RankContext.item`), returns one row
    per row, and is declared ``returns=Split()``: who takes its value gets the rows in the order of
    the source, whoever made them.

    An exception of one item fails the job; with `on_error` ``"drop"`` the item's rows are left out
    of the value and counted as the metric `rows_left_out`. Errors of rolemesh other than
    `CallError` fail the job all the same. A step of which all rows are left out has none, and the
    columns that the operator has returned before, or else its input's.
    """

    rows: int = 1
    concurrency: int = 1
    on_error: Literal["fail", "drop"] = "fail"


Partition: TypeAlias = Split | Broadcast | Partial | Sharded | Balanced
Streaming: TypeAlias = bool | Literal["arrival"]
"""Whether an operator takes its inputs chunk by chunk, and then in which order (see
`rolemesh.operator`)."""
