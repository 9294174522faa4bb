"""Every hook that a plugin may implement, on one page (pluggy). Per-step work never goes through
these.

Plugin classes derive from the base of their kind and mark implementations with `hookimpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from rolemesh.api.cluster import ClusterView
    from rolemesh.api.failover import GiveUp
    from rolemesh.api.failures import Failure, JobView, Pass, RecoveryPlan, Verdict
    from rolemesh.api.observer import Event, JobStatus, Missed, RunInfo, StepMetrics
    from rolemesh.placement import PlacementPlan, PlacementRequest

PROJECT = "rolemesh"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --------------------------------------------------------------------------------------------------
# schedulers: in the driver, before anything starts; pure
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def place(
    request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan
) -> PlacementPlan | None:
    """Add slots and assignments for the ranks that `plan` has not placed; return the new plan, None
    to pass."""


@hookspec(firstresult=True)
def replace(
    plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView
) -> PlacementPlan | None:
    """Move the ranks of the nodes in `lost` elsewhere; return the new plan, or None to leave it to
    `place`."""


# --------------------------------------------------------------------------------------------------
# failover and diagnosis: in the master, after a failure; pure
# --------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def diagnose(failure: Failure, view: JobView) -> Verdict | None:
    """Say what kind of failure this is, or None if you cannot tell; the first verdict counts."""


@hookspec(firstresult=True)
def recover(failure: Failure, view: JobView) -> RecoveryPlan | Pass | GiveUp | None:
    """Propose the smallest restart that brings the job back; `Pass`, or None, leaves the failure to
    the next level.

    `GiveUp` ends the job.
    """


# --------------------------------------------------------------------------------------------------
# observers: beside the master, or in the driver where a person watches (`Observer.side`)
# --------------------------------------------------------------------------------------------------


@hookspec
def job_started(run: RunInfo) -> None:
    """Get ready: the job has been planned and its run folder exists."""


@hookspec
def event(event: Event) -> None:
    """Take note of a journalled transition."""


@hookspec
def steps_finished(metrics: tuple[StepMetrics, ...]) -> None:
    """Take the metrics of steps that every role has finished, in order, each exactly once."""


@hookspec
def status(status: JobStatus) -> None:
    """Take the present picture of the job, a few times a second (driver side only)."""


@hookspec
def missed(missed: Missed) -> None:
    """Take note of what you were not told of, because you are slower than the job: in its place
    among the others."""


@hookspec
def job_ended(result: dict[str, Any]) -> None:
    """Write what you have to write: `result` is the content of ``result.json``."""
