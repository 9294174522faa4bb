"""How a value is distributed over the ranks of a role (OneFlow's SBP signatures, plus named
shards).

Each input and output of an operator declares a partition. From the partitions of producer and
consumer, `rolemesh.graph.routes` derives which rank sends what to which rank. Yuan et al.,
"OneFlow: Redesign the Distributed Deep Learning Framework from Scratch", arXiv:2110.15032, section
3.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class Split(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds a contiguous part along `axis` (0: the rows of a `Batch`), in rank order. The
    parts may differ in size."""

    axis: int = 0


class Broadcast(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds the whole value, which is the same on all ranks."""


class Partial(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds a summand of the same shape; the value is their reduction by `op` over the
    ranks."""

    op: Literal["sum", "mean"] = "sum"


class Sharded(msgspec.Struct, frozen=True, tag=True):
    """`rolemesh.api.batch.Shards`: named tensors. Each rank holds a block of each with its global
    shape and offsets.

    As the partition of a consumer with N ranks: rank n receives block n of ``torch.chunk(tensor, N,
    dim)``, the layout of FSDP2. If `dim` is None, each rank receives all tensors in the pieces that
    the producer's ranks hold, as a ``dict[str, list[Shard]]``; `Shard.into` copies each piece to
    its place.
    """

    dim: int | None = 0


class Balanced(msgspec.Struct, frozen=True, tag=True):
    """An input whose rows the ranks share by demand. The engine cuts a step's value into items of
    `rows` rows, and each rank takes the next item when it is free; ``async def`` operators may
    process `concurrency` items at once.

    If the operator calls services whose outcomes are logged, a rank makes its own items only. It
    may then begin items of up to `ahead` later steps while it makes fewer than `concurrency`.

    The operator is called once per item (`rolemesh.api.workload.RankContext.item`), returns
    `results` rows per row, and declares ``returns=Split()``. Consumers get the rows in the order of
    the source, whichever ranks made them.

    An exception in one item fails the job. With `on_error` ``"drop"`` the engine drops the item's
    rows instead and counts them in the metric `rows_left_out`; errors of rolemesh other than
    `CallError` still fail the job. If a step loses all rows, its value has no rows and the columns
    of the operator's last result, or else of its input.
    """

    rows: int = 1
    concurrency: int = 1
    on_error: Literal["fail", "drop"] = "fail"
    ahead: int = 0
    results: int = 1


Partition: TypeAlias = Split | Broadcast | Partial | Sharded | Balanced
Streaming: TypeAlias = bool | Literal["arrival"]
"""True or ``"arrival"`` if an operator takes inputs chunk by chunk (see `rolemesh.operator`)."""
