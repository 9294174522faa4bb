"""rolemesh: the control plane for AI jobs made of many roles.

This is the public API for authors of workloads, flows and plugins. Names are imported when they are
first used, so ``import rolemesh`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh.api.batch import (
        Batch as Batch,
        Gathered as Gathered,
        Ragged as Ragged,
        Shard as Shard,
        Shards as Shards,
    )
    from rolemesh.api.cluster import ClusterView as ClusterView, NodeView as NodeView
    from rolemesh.api.command import (
        Command as Command,
        PlanOption as PlanOption,
        RunOption as RunOption,
    )
    from rolemesh.api.diagnoser import Diagnoser as Diagnoser
    from rolemesh.api.failover import (
        Budget as Budget,
        FailoverLevel as FailoverLevel,
        GiveUp as GiveUp,
    )
    from rolemesh.api.failures import (
        Attempt as Attempt,
        Failure as Failure,
        JobView as JobView,
        NodeState as NodeState,
        Pass as Pass,
        RankView as RankView,
        RecoveryPlan as RecoveryPlan,
        Verdict as Verdict,
    )
    from rolemesh.api.import_ref import ImportRef as ImportRef
    from rolemesh.api.observer import (
        Event as Event,
        JobStatus as JobStatus,
        Missed as Missed,
        Observer as Observer,
        RunInfo as RunInfo,
        StepMetrics as StepMetrics,
    )
    from rolemesh.api.partition import (
        Balanced as Balanced,
        Broadcast as Broadcast,
        Partial as Partial,
        Sharded as Sharded,
        Split as Split,
    )
    from rolemesh.api.rank_ref import RankRef as RankRef
    from rolemesh.api.scheduler import Scheduler as Scheduler
    from rolemesh.api.service import (
        CalledBy as CalledBy,
        CallError as CallError,
        CallTimeoutError as CallTimeoutError,
        CallUncertainError as CallUncertainError,
        SessionLostError as SessionLostError,
        service as service,
    )
    from rolemesh.api.workload import (
        RankContext as RankContext,
        State as State,
        Workload as Workload,
        operator as operator,
    )
    from rolemesh.errors import (
        OptionsError as OptionsError,
        PlacementError as PlacementError,
        PluginError as PluginError,
        RolemeshError as RolemeshError,
    )
    from rolemesh.graph.flow import flow as flow
    from rolemesh.graph.logical import AtMost as AtMost
    from rolemesh.hookspecs import hookimpl as hookimpl
    from rolemesh.job.engine import Engine as Engine, RunHandle as RunHandle
    from rolemesh.job.job import Job as Job
    from rolemesh.job.prepared import CheckedJob as CheckedJob
    from rolemesh.kinds import Kind as Kind
    from rolemesh.placement import (
        Assignment as Assignment,
        PlacementPlan as PlacementPlan,
        PlacementRequest as PlacementRequest,
        PlanBuilder as PlanBuilder,
        RoleRequest as RoleRequest,
        Slot as Slot,
        Unplaced as Unplaced,
    )

    __version__: str

_HOMES = {
    "api.batch": "Batch Gathered Ragged Shard Shards",
    "api.cluster": "ClusterView NodeView",
    "api.command": "Command PlanOption RunOption",
    "api.diagnoser": "Diagnoser",
    "api.failover": "Budget FailoverLevel GiveUp",
    "api.failures": "Attempt Failure JobView NodeState Pass RankView RecoveryPlan Verdict",
    "api.import_ref": "ImportRef",
    "api.observer": "Event JobStatus Missed Observer RunInfo StepMetrics",
    "api.partition": "Balanced Broadcast Partial Sharded Split",
    "api.rank_ref": "RankRef",
    "api.scheduler": "Scheduler",
    "api.service": "CallError CallTimeoutError CallUncertainError CalledBy SessionLostError "
    "service",
    "api.workload": "RankContext State Workload operator",
    "errors": "OptionsError PlacementError PluginError RolemeshError",
    "graph.flow": "flow",
    "graph.logical": "AtMost",
    "hookspecs": "hookimpl",
    "job.engine": "Engine RunHandle",
    "job.job": "Job",
    "job.prepared": "CheckedJob",
    "kinds": "Kind",
    "placement": "Assignment PlacementPlan PlacementRequest PlanBuilder RoleRequest Slot Unplaced",
}
"""The public names of each module. Type checkers read the imports above instead."""
_HOME = {name: f"rolemesh.{module}" for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(["__version__", *_HOME])


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
