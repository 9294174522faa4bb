"""Every hook that a plugin may implement, on one page (pluggy).

Classes of schedulers, failover levels, diagnosers and observers mark implementations with
`hookimpl`. In a workload the method's name is enough. Per-step work (operators, edges) goes through
none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rolemesh.api.cluster import ClusterView
    from rolemesh.api.context import RankContext
    from rolemesh.api.failover import GiveUp
    from rolemesh.api.failures import Failure, JobView, Pass, RecoveryPlan, Verdict
    from rolemesh.api.observer import Event, JobStatus, Missed, RunInfo, StepMetrics
    from rolemesh.api.workload import State
    from rolemesh.placement import PlacementPlan, PlacementRequest

PROJECT = "rolemesh"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --------------------------------------------------------------------------------------------------
# schedulers: in the driver before the job starts, in the master after a loss; pure
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def place(
    request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan
) -> PlacementPlan | None:
    """Return `plan` with slots and assignments for ranks that it has not placed, or None to
    pass."""


@hookspec(firstresult=True)
def replace(
    plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView
) -> PlacementPlan | None:
    """Return `plan` with the ranks of the `lost` nodes moved, or None to leave them to `place`."""


# --------------------------------------------------------------------------------------------------
# failover and diagnosis: in the master, after a failure; pure
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def diagnose(failure: Failure, view: JobView) -> Verdict | None:
    """Classify the failure, or return None if you cannot; the first verdict counts."""


@hookspec(firstresult=True)
def recover(failure: Failure, view: JobView) -> RecoveryPlan | Pass | GiveUp | None:
    """Propose the smallest restart that repairs the job; `Pass` or None leaves the failure to the
    next level, and `GiveUp` ends the job."""


# --------------------------------------------------------------------------------------------------
# observers: beside the master, or in the driver where a person watches (`Observer.side`)
# --------------------------------------------------------------------------------------------------


@hookspec
def job_started(run: RunInfo) -> None:
    """Prepare: the engine has planned the job, and the run folder exists."""


@hookspec
def event(event: Event) -> None:
    """Process a transition that the master has journalled."""


@hookspec
def steps_finished(metrics: tuple[StepMetrics, ...]) -> None:
    """Process the metrics of steps that every role has finished, in order and each exactly once."""


@hookspec
def status(status: JobStatus) -> None:
    """Show the present state of the job; called a few times a second, in the driver only."""


@hookspec
def missed(missed: Missed) -> None:
    """Note which notifications were dropped because this observer fell behind, in order with the
    other hooks."""


@hookspec
def job_ended(result: dict[str, Any]) -> None:
    """Write the last output; `result` is the content of ``result.json``."""


# --------------------------------------------------------------------------------------------------
# workloads: in the rank, between operators; a method of the hook's name implements it
# --------------------------------------------------------------------------------------------------


@hookspec
def setup(ctx: RankContext) -> None:
    """Build models, engines and iterators; heavy imports belong here."""


@hookspec
def restore(state: State) -> None:
    """Restore the state that `snapshot` returned, after `setup` in a new process."""


@hookspec
def snapshot() -> State | None:
    """Return the rank's whole state between two steps, or None if it has none."""


@hookspec
def committed(step: int) -> None:
    """Note that every rank has `step` and all steps before in snapshots in memory, or has finished
    them where the job keeps no snapshots."""


@hookspec
def persisted(step: int) -> None:
    """Note that the checkpoint of `step` is complete on disk, and acknowledge to brokers what was
    read up to that step."""


@hookspec
def drain(left_s: float) -> None:
    """Release what belongs to this node, which goes away in `left_s` seconds (infinity if
    unknown)."""


@hookspec
def offload() -> None:
    """Free device memory, because another role has its turn on the same devices."""


@hookspec
def onload() -> None:
    """Take device memory again, so that operators find everything as it was before `offload`."""


@hookspec
def teardown() -> None:
    """Release what the end of the process does not: child processes, files, remote sessions."""


PARTNERS = (("snapshot", "restore"), ("offload", "onload"))
"""Pairs of hooks that a workload implements only together."""
