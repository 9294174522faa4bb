"""rolemesh: the control plane for AI jobs made of many roles.

This is the public face: what authors of workloads, flows and plugins need. Names are imported when they are first
used, so that ``import rolemesh`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh.api.batch import Batch, Ragged, Shard, Shards
    from rolemesh.api.cluster import ClusterView, NodeView
    from rolemesh.api.command import Command, PlanOption, RunOption
    from rolemesh.api.diagnoser import Diagnoser
    from rolemesh.api.failover import Budget, FailoverLevel, GiveUp
    from rolemesh.api.failures import Attempt, Failure, JobView, NodeState, Pass, RankView, RecoveryPlan, Verdict
    from rolemesh.api.import_ref import ImportRef
    from rolemesh.api.observer import Event, JobStatus, Observer, RunInfo, StepMetrics
    from rolemesh.api.partition import Balanced, Broadcast, Partial, Sharded, Split
    from rolemesh.api.scheduler import Scheduler
    from rolemesh.api.service import CalledBy, CallError, CallTimeoutError, SessionLostError, service
    from rolemesh.api.workload import RankContext, State, Workload, operator
    from rolemesh.errors import OptionsError, PlacementError, PluginError, RolemeshError
    from rolemesh.graph.flow import flow
    from rolemesh.graph.logical import AtMost
    from rolemesh.hookspecs import hookimpl
    from rolemesh.job.engine import Engine, RunHandle
    from rolemesh.job.job import Job
    from rolemesh.kinds import Kind
    from rolemesh.placement import Assignment, PlacementPlan, PlacementRequest, PlanBuilder, RoleRequest, Slot, Unplaced

    __version__: str

__all__ = ["AtMost", "Job", "__version__", "flow"]
__all__ += ["CallError", "CallTimeoutError", "CalledBy", "SessionLostError", "service"]
__all__ += ["ImportRef", "RankContext", "State", "Workload", "operator"]
__all__ += ["Balanced", "Batch", "Broadcast", "Partial", "Ragged", "Shard", "Sharded", "Shards", "Split"]
__all__ += ["ClusterView", "NodeView", "PlacementRequest", "RoleRequest", "Scheduler"]
__all__ += ["Assignment", "PlacementPlan", "PlanBuilder", "Slot", "Unplaced"]
__all__ += ["Attempt", "Diagnoser", "Failure", "JobView", "NodeState", "RankView", "Verdict"]
__all__ += ["Budget", "FailoverLevel", "GiveUp", "Pass", "RecoveryPlan"]
__all__ += ["Event", "JobStatus", "Observer", "RunInfo", "StepMetrics"]
__all__ += ["Command", "Engine", "Kind", "PlanOption", "RunHandle", "RunOption", "hookimpl"]
__all__ += ["OptionsError", "PlacementError", "PluginError", "RolemeshError"]
__all__.sort()

_HOMES = {
    "api.batch": ("Batch", "Ragged", "Shard", "Shards"),
    "api.cluster": ("ClusterView", "NodeView"),
    "api.diagnoser": ("Diagnoser",),
    "errors": ("OptionsError", "PlacementError", "PluginError", "RolemeshError"),
    "api.failures": ("Attempt", "Failure", "JobView", "NodeState", "Pass", "RankView", "RecoveryPlan", "Verdict"),
    "graph.flow": ("flow",),
    "graph.logical": ("AtMost",),
    "hookspecs": ("hookimpl",),
    "job.engine": ("Engine", "RunHandle"),
    "job.job": ("Job",),
    "kinds": ("Kind",),
    "api.command": ("Command", "PlanOption", "RunOption"),
    "api.import_ref": ("ImportRef",),
    "api.failover": ("Budget", "FailoverLevel", "GiveUp"),
    "api.observer": ("Event", "JobStatus", "Observer", "RunInfo", "StepMetrics"),
    "api.partition": ("Balanced", "Broadcast", "Partial", "Sharded", "Split"),
    "placement": ("Assignment", "PlacementPlan", "PlacementRequest", "PlanBuilder", "RoleRequest", "Slot", "Unplaced"),
    "api.scheduler": ("Scheduler",),
    "api.service": ("CallError", "CalledBy", "CallTimeoutError", "SessionLostError", "service"),
    "api.workload": ("RankContext", "State", "Workload", "operator"),
}
_HOME = {name: f"rolemesh.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from rolemesh.kinds.installed import version

        value: Any = version("rolemesh")
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'rolemesh' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
