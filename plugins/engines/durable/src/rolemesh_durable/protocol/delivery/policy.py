"""The questions of the engine about an edge's delivery. The answers here are those of an edge with an exact lag."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rolemesh.api.partition import Balanced, Broadcast, Partition
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Combine, Route, by_demand, route
from rolemesh.graph.schedule import Activity, Period
from rolemesh_durable.protocol.edge import last_call

if TYPE_CHECKING:
    from rolemesh_durable.protocol.delivery.exact import InPort
    from rolemesh_durable.protocol.rank.effects import Effects

__all__ = ["ConsumerEnd", "Delivery"]


class ConsumerEnd(NamedTuple):
    """One consumer rank's end of an edge.

    `role`: The producing role.
    `sources`: The producer ranks that send one part each.
    `how`: How these parts become the value.
    `first`: The first producer step whose value the rank needs.
    `hold`: A value of step m may be needed until step m + `hold` is committed.
    `calls`: The steps that take a value.
    `rank`: This rank.
    `ranks`: Number of ranks of its role.
    `revocable`: Whether a restarted producer may make other values than before.
    """

    role: str
    sources: Sequence[int]
    how: Combine
    first: int = 0
    hold: int = 0
    calls: Period = Period()
    rank: int = 0
    ranks: int = 1
    revocable: bool = False


class Delivery(ABC):
    """The rules by which one edge brings its values to the steps of the consuming call."""

    kind: ClassVar[str]
    """The name of the delivery."""
    one_version: ClassVar[bool] = True
    """True if all ranks that take a value must take the same version of it."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.scope = f"{self.kind}/{edge.id}"
        """The scope of a consumer's decisions about the edge, in its send log."""

    # ------------------------------------------------------------------------------------------------- who and when

    @property
    def shared(self) -> Balanced | None:
        """The sharing of rows among the consumer's ranks by demand; None if they do not share."""
        return by_demand(self.edge.dst_partition)

    @property
    def held(self) -> Partition:
        """The partition in which the consumer's ranks hold the value before they share it. All pieces are the whole."""
        whole = self.shared is not None or getattr(self.edge.dst_partition, "dim", 0) is None
        return Broadcast() if whole else self.edge.dst_partition

    @property
    def soonest(self) -> int:
        """Minimum number of steps between a value and the step that takes it."""
        return self.edge.lag

    def route(self, producers: int, consumers: int) -> Route:
        """The messages of one value between roles of these sizes."""
        return route(self.edge.src_partition, producers, self.edge.dst_partition, consumers)

    # ------------------------------------------------------------------------------------------------ a rank's port

    @abstractmethod
    def port(self, end: ConsumerEnd, effects: Effects[Any]) -> InPort:
        """The consumer's end in a rank."""

    def first_needed(self, graph: LogicalGraph, activity: Activity, unrepeated: Collection[str], resume: int) -> int:
        """Return the first producer step that a consumer needs after a restart from step `resume` (-1: it starts).

        A role that is not `unrepeated` repeats its last call of an operator that returns nothing. That call takes the
        same value again: with a bounded lag any value of the last `lag` steps, or the initial one.
        """
        edge, call = self.edge, graph.ops[self.edge.dst]
        if call.returns is None and call.role not in unrepeated:
            repeated, begins = last_call(activity, edge.dst, resume), activity.first(edge)
            if repeated is not None and repeated - self.soonest >= begins:  # else it had the initial value
                return max(repeated - edge.lag, begins)
        return max(0, self._next_step(activity.periods[edge.dst], resume) - edge.lag)

    def _next_step(self, period: Period | None, resume: int) -> int:
        """The first step after `resume` that takes a value.

        The producer also makes values in steps without a call. Those that are too old for the next call need no credit:
        only that call would release them, and the producer may have to go on before it.
        """
        return resume + 1 if period is None else period.next(resume + 1)

    # -------------------------------------------------------------------------------------------- waits of ranks

    def awaited(self, step: int) -> tuple[int, ...]:
        """Return the producer steps for which `step` may wait, the most urgent one first."""
        return (step - self.edge.lag,)

    def releasing(self, step: int, period: Period) -> int:
        """The step that the consumer must finish before the value of `step` gets a credit; `period` is its steps."""
        taken = step - 1 + self.edge.lag
        return taken - (taken - period.at) % period.every - (self.edge.window - 1) * period.every

    # ------------------------------------------------------------------------------------------- snapshots and sizes

    @property
    def may_owe(self) -> bool:
        """True if the consumer may leave out a snapshot until something keeps it from finishing the next step."""
        return self.shared is None

    def resize_refusal(self, role: str) -> str:
        """Return why the consuming `role` cannot have another number of ranks; "" if it can."""
        return ""
