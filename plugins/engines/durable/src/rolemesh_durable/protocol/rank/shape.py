"""The part of its job that a rank knows from the beginning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.master_config import SnapshotPlan

__all__ = ["JobShape"]


class JobShape(msgspec.Struct, frozen=True):
    """The flow of a job, the sizes of its roles, and the rules for keeping sent values.

    - `graph`: the flow.
    - `activity`: the steps at which its operators run.
    - `world_sizes`: the first number of ranks of each role.
    - `steps`: the number of steps of the job.
    - `retention`: ranks keep sent values until a commit.
    - `retention_bytes`: a put waits for a commit while a rank keeps more than this for uncommitted steps.
    - `snapshots`: when ranks take snapshots.
    - `unrepeated`: roles that are restored from snapshots alone.
    - `varying`: roles whose operators may return a different result the second time.
    """

    graph: LogicalGraph
    activity: Activity
    world_sizes: Mapping[str, int]
    steps: int
    retention: bool = False
    retention_bytes: int = 1 << 30
    snapshots: SnapshotPlan = SnapshotPlan()
    unrepeated: Collection[str] = ()
    varying: Collection[str] = ()
