"""The part of its job that a rank's machine knows from the beginning."""

from __future__ import annotations

from functools import cached_property

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan

__all__ = ["JobShape"]


class JobShape(msgspec.Struct, frozen=True, dict=True):
    """The flow of a job, the sizes of its roles, and the rules for keeping sent values."""

    graph: LogicalGraph
    """The flow."""
    world_sizes: dict[str, int]
    """The first number of ranks of each role."""
    steps: int
    """The number of steps; `ENDLESS` for a job without an end."""
    retention: bool = False
    """True if ranks keep sent values until a commit, for a consumer that restarts."""
    retention_bytes: int = 1 << 30
    """Maximum bytes that a rank keeps for uncommitted steps. Above that, a put waits for a commit."""
    snapshots: SnapshotPlan = SnapshotPlan()
    """The steps after which ranks take snapshots."""
    unrepeated: tuple[str, ...] = ()
    """Stateful roles that are restored by their snapshots alone."""
    varying: tuple[str, ...] = ()
    """Roles whose workload may return a different value in a second call.

    So nothing replaces the values that they have sent.
    """

    @cached_property
    def activity(self) -> Activity:
        """The steps at which its operators run."""
        return Activity(self.graph)
