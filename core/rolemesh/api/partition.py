"""How a value lies over the ranks of a role (OneFlow's SBP signatures, plus named shards).

A partition is declared per operator input and output; `rolemesh.graph.routes` derives from the producer's and the
consumer's who sends what to whom. Yuan et al., "OneFlow: Redesign the Distributed Deep Learning Framework from
Scratch", arXiv:2110.15032, section 3.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Balanced", "Broadcast", "Partial", "Partition", "Sharded", "Split"]


class Split(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds a contiguous part along `axis` (0: the rows of a `Batch`), in rank order; parts may be uneven."""

    axis: int = 0


class Broadcast(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds the whole, equal value."""


class Partial(msgspec.Struct, frozen=True, tag=True):
    """Each rank holds an addend of equal shape; the value is their `op` over the ranks."""

    op: Literal["sum", "mean"] = "sum"


class Sharded(msgspec.Struct, frozen=True, tag=True):
    """`rolemesh.api.batch.Shards`: named tensors, each rank holding a block with its global shape and offsets.

    As a consumer's partition over N ranks, rank n wants block n of ``torch.chunk(tensor, N, dim)``, FSDP2's layout.
    """

    dim: int = 0


class Balanced(msgspec.Struct, frozen=True, tag=True):
    """Reserved: chunks go to whichever consumer rank has credit. This kernel refuses it when the flow is traced."""


Partition: TypeAlias = Split | Broadcast | Partial | Sharded | Balanced
