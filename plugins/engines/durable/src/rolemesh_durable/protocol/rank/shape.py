"""The part of its job that a rank knows from the beginning."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.master_config import SnapshotPlan

__all__ = ["JobShape"]


class JobShape(msgspec.Struct, frozen=True):
    """The flow, the sizes of its roles, and what is kept of what its ranks send.

    `graph`: The flow.
    `activity`: At which steps its operators run.
    `world_sizes`: How many ranks each role has at first.
    `steps`: How many steps the job runs.
    `retention`: Whether what is sent is kept until a commit.
    `retention_bytes`: A put waits for a commit while a rank keeps more than this for steps that are not committed.
    `snapshots`: When ranks take snapshots.
    `unrepeated`: Roles that are restored from snapshots alone.
    `varying`: Roles whose operators may come to something else the second time.
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
