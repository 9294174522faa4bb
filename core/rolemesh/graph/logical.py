"""The logical graph: one node per operator call in the flow, one edge per value between two calls.

World sizes do not appear here: an edge between a role of M ranks and one of N ranks is one edge.
The graph is plain data (msgspec), so it can be sent to every process and written to ``plan.json``
as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.api.partition import Partition, Streaming
from rolemesh.api.service import ServiceSpec


class AtMost(msgspec.Struct, frozen=True):
    """``lag=AtMost(k)``: the newest value that is available when the call begins, at most `steps`
    steps old. 0 is the value of the same step, as ``lag=0``."""

    steps: int

    def __repr__(self) -> str:
        return f"AtMost({self.steps})"


class OpCall(msgspec.Struct, frozen=True):
    """One call of an operator in the flow.

    `id` is its position in the flow, from 0. `label` is ``role.operator``, with ``#2`` for a second
    call. The call runs on steps with ``step % every == at``, if its inputs exist. `constants` are
    arguments that are not edges; `calls` are the roles whose services the operator may call.
    """

    id: int
    role: str
    operator: str
    label: str
    returns: Partition | None
    streaming: Streaming = False
    constants: dict[str, Any] = {}
    every: int = 1
    at: int = 0
    where: str = ""
    calls: tuple[str, ...] = ()


class Edge(msgspec.Struct, frozen=True):
    """A value's way from call `src` to parameter `param` of call `dst`.

    `lag`: At step t the consumer takes what the producer made at step ``t - lag``.
    `newest`: The lag is a bound: the consumer takes the newest value that was made since then and
    has come.
    `credits`: The producer may be ``lag + credits`` values ahead of what the consumer has taken.
    None: 2, and more while values are small.
    `initial`: One value, which every consumer rank takes until the producer has made one; or empty.
    """

    id: int
    src: int
    dst: int
    param: str
    src_partition: Partition
    dst_partition: Partition
    lag: int = 0
    credits: int | None = None
    initial: tuple[Any, ...] = ()
    newest: bool = False

    @property
    def lag_shown(self) -> str:
        """The lag as a flow says it."""
        return f"AtMost({self.lag})" if self.newest else str(self.lag)

    @property
    def window(self) -> int:
        """Number of values that may be on the edge at once, however large they are."""
        return self.lag + (self.credits or 2)


class LogicalGraph(msgspec.Struct, frozen=True):
    """A traced flow: the calls in the order of the flow, the edges in the order of their consumers,
    and the `services` of the roles that operators may call."""

    name: str
    ops: tuple[OpCall, ...]
    edges: tuple[Edge, ...]
    services: dict[str, dict[str, ServiceSpec]] = {}

    def inputs(self, op: int) -> tuple[Edge, ...]:
        """Return the edges into call `op`, in the order of its parameters."""
        return tuple(edge for edge in self.edges if edge.dst == op)

    def outputs(self, op: int) -> tuple[Edge, ...]:
        """Return the edges out of call `op`."""
        return tuple(edge for edge in self.edges if edge.src == op)

    def of_role(self, role: str) -> tuple[OpCall, ...]:
        """Return the calls on `role` in the order of the flow, which is the order in which its
        ranks run them."""
        return tuple(op for op in self.ops if op.role == role)

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the roles in the order of their first call; roles that only answer calls come
        last."""
        return tuple(dict.fromkeys([*(op.role for op in self.ops), *self.services]))

    @property
    def callers(self) -> tuple[tuple[str, str], ...]:
        """Return each pair of a role and a role whose services it calls, once."""
        return tuple(dict.fromkeys((op.role, other) for op in self.ops for other in op.calls))
