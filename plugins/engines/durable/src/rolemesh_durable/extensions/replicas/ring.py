"""The ring of agents: each one copies its snapshots to the next. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from rolemesh_durable.extensions.replicas.messages import Copying, CopyTo

__all__ = ["NextAgent", "next_of"]


def next_of(names: Iterable[str], leaving: Iterable[str]) -> dict[str, str]:
    """Return the next agent of each by name, preferably one that does not leave; none for a single agent."""
    order, left = sorted(names), {*leaving}
    staying = [name for name in order if name not in left]
    ring = {}
    for at, name in enumerate(order):
        following = staying[bisect_right(staying, name) % len(staying)] if staying else name
        if following == name:
            following = order[(at + 1) % len(order)]
        if following != name:
            ring[name] = following
    return ring


class NextAgent:
    """An agent's knowledge of the agent that gets its copies."""

    def __init__(self) -> None:
        self.order: CopyTo | None = None
        """The newest order of the master; None before the first one."""

    def take(self, order: CopyTo) -> bool:
        """Take an order of the master. Return False if a newer one has come."""
        if self.order is not None and (order.epoch, order.number) < (self.order.epoch, self.order.number):
            return False
        self.order = order
        return True

    @property
    def address(self) -> str:
        """The next agent's address; "" if there is none, or none is known yet."""
        return self.order.address if self.order is not None else ""

    @property
    def alone(self) -> bool:
        """True if there is no other agent. A snapshot is then durable without a copy."""
        return self.order is not None and not self.order.address

    @property
    def confirmation(self) -> Copying | None:
        """The agent's report of the newest order; None before the first one."""
        return Copying(self.order.epoch, self.order.number) if self.order is not None else None

    def durable(self, snapshot: int, copied: int) -> int:
        """Return the step that survives the loss of this agent's node, of a rank with this newest snapshot and copy."""
        return snapshot if self.alone else min(snapshot, copied)
