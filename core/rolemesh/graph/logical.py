"""The logical graph: one node per operator call in the flow, one edge per value between two of them.

World sizes appear nowhere here: an edge between an M-rank and an N-rank role is one edge. The graph is plain data
(msgspec), so it travels to every process and into ``plan.json`` as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.api.partition import Partition

__all__ = ["Edge", "LogicalGraph", "OpCall"]


class OpCall(msgspec.Struct, frozen=True):
    """One call of an operator in the flow.

    `id` is its position in the flow, from 0. `label` is ``role.operator``, with ``#2`` for a second call. The call
    runs on steps with ``step % every == at``, if its inputs exist. `constants` are arguments that are not edges.
    """

    id: int
    role: str
    operator: str
    label: str
    returns: Partition | None
    streaming: bool = False
    constants: dict[str, Any] = {}
    every: int = 1
    at: int = 0
    where: str = ""


class Edge(msgspec.Struct, frozen=True):
    """A value's way from call `src` to parameter `param` of call `dst`.

    The consumer takes at step t what the producer made at step ``t - lag``. The producer may be at most
    ``lag + credits`` values ahead of what the consumer has taken.
    """

    id: int
    src: int
    dst: int
    param: str
    src_partition: Partition
    dst_partition: Partition
    lag: int = 0
    credits: int = 2

    @property
    def window(self) -> int:
        """Values that may be on the edge at once."""
        return self.lag + self.credits


class LogicalGraph(msgspec.Struct, frozen=True):
    """A traced flow: calls in the flow's order, edges in the order of their consumers."""

    name: str
    ops: tuple[OpCall, ...]
    edges: tuple[Edge, ...]

    def inputs(self, op: int) -> tuple[Edge, ...]:
        """The edges into call `op`, in the order of its parameters."""
        return tuple(edge for edge in self.edges if edge.dst == op)

    def outputs(self, op: int) -> tuple[Edge, ...]:
        """The edges out of call `op`."""
        return tuple(edge for edge in self.edges if edge.src == op)

    def of_role(self, role: str) -> tuple[OpCall, ...]:
        """The calls on `role`, in the flow's order: the order in which its ranks run them."""
        return tuple(op for op in self.ops if op.role == role)

    @property
    def lines(self) -> tuple[str, ...]:
        """The flow in words, a line for each call and each edge: equal where steps mean the same."""
        calls = [f"call {op.id}: {op.label}, every {op.every} at {op.at}" for op in self.ops]
        edges = [
            f"edge {edge.id}: {self.ops[edge.src].label} → {self.ops[edge.dst].label}({edge.param}), lag {edge.lag}, "
            f"{type(edge.src_partition).__name__} → {type(edge.dst_partition).__name__}"
            for edge in self.edges
        ]
        return (*calls, *edges)

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles in the order of their first call."""
        return tuple(dict.fromkeys(op.role for op in self.ops))
