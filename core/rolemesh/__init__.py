"""rolemesh: the control plane for AI jobs made of many roles.

This is the public face: what authors of workloads, flows and plugins need. Names are imported when they are first
used, so that ``import rolemesh`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh.batch import Batch, Ragged, Shard, Shards
    from rolemesh.cluster import ClusterView, NodeView
    from rolemesh.diagnoser import Diagnoser
    from rolemesh.errors import OptionsError, PlacementError, PluginError, RolemeshError
    from rolemesh.failures import Attempt, Failure, JobView, NodeState, RankView, RecoveryPlan, Verdict
    from rolemesh.graph.flow import flow
    from rolemesh.hookspecs import hookimpl
    from rolemesh.imports import ImportRef
    from rolemesh.level import Budget, FailoverLevel
    from rolemesh.observer import Event, JobStatus, Observer, RunInfo, StepMetrics
    from rolemesh.partition import Broadcast, Partial, Sharded, Split
    from rolemesh.placement import (
        Assignment,
        PlacementPlan,
        PlacementRequest,
        PlanBuilder,
        RoleRequest,
        Slot,
        Unplaced,
    )
    from rolemesh.scheduler import Scheduler
    from rolemesh.transport import Inbox, Payload, Sender, Site, Stamp, Transport
    from rolemesh.workload import RankContext, State, Workload, operator

    __version__: str

__all__ = [
    "Assignment",
    "Attempt",
    "Batch",
    "Broadcast",
    "Budget",
    "ClusterView",
    "Diagnoser",
    "Event",
    "FailoverLevel",
    "Failure",
    "ImportRef",
    "Inbox",
    "JobStatus",
    "JobView",
    "NodeState",
    "NodeView",
    "Observer",
    "OptionsError",
    "Partial",
    "Payload",
    "PlacementError",
    "PlacementPlan",
    "PlacementRequest",
    "PlanBuilder",
    "PluginError",
    "Ragged",
    "RankContext",
    "RankView",
    "RecoveryPlan",
    "RoleRequest",
    "RolemeshError",
    "RunInfo",
    "Scheduler",
    "Sender",
    "Shard",
    "Sharded",
    "Shards",
    "Site",
    "Slot",
    "Split",
    "Stamp",
    "State",
    "StepMetrics",
    "Transport",
    "Unplaced",
    "Verdict",
    "Workload",
    "__version__",
    "flow",
    "hookimpl",
    "operator",
]

_HOMES = {
    "batch": ("Batch", "Ragged", "Shard", "Shards"),
    "cluster": ("ClusterView", "NodeView"),
    "diagnoser": ("Diagnoser",),
    "errors": ("OptionsError", "PlacementError", "PluginError", "RolemeshError"),
    "failures": ("Attempt", "Failure", "JobView", "NodeState", "RankView", "RecoveryPlan", "Verdict"),
    "graph.flow": ("flow",),
    "hookspecs": ("hookimpl",),
    "imports": ("ImportRef",),
    "level": ("Budget", "FailoverLevel"),
    "observer": ("Event", "JobStatus", "Observer", "RunInfo", "StepMetrics"),
    "partition": ("Broadcast", "Partial", "Sharded", "Split"),
    "placement": ("Assignment", "PlacementPlan", "PlacementRequest", "PlanBuilder", "RoleRequest", "Slot", "Unplaced"),
    "scheduler": ("Scheduler",),
    "transport": ("Inbox", "Payload", "Sender", "Site", "Stamp", "Transport"),
    "workload": ("RankContext", "State", "Workload", "operator"),
}
_HOME = {name: f"rolemesh.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("rolemesh")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'rolemesh' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
