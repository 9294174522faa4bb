"""What ``rolemesh plan`` tells of traffic: sizes that are measured, and how much crosses nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from pydantic import BaseModel, ByteSize, Field

from rolemesh import ClusterView, PlacementPlan
from rolemesh.api.command import PlanOption
from rolemesh.errors import JobFailedError
from rolemesh.graph.schedule import Activity
from rolemesh.inline.engine import InlineEngine
from rolemesh.job.planning import plan_job
from rolemesh.job.prepared import Prepared, prepare
from rolemesh_subgraph.traffic import crossing

__all__ = ["Preview"]


class PreviewOptions(BaseModel, extra="forbid"):
    """Options of ``rolemesh plan``."""

    profile: bool = Field(
        default=False, description="Run some steps in this process to measure what edges carry, first."
    )


class Preview(PlanOption):
    """The bytes that cross nodes, beside those that would if the roles were packed one after the other.

    With ``--profile`` the job's first steps are run in this process, and the sizes of what operators return are shown
    as `edges.sizes`, to be put into the job file.
    """

    Options: ClassVar[type[BaseModel]] = PreviewOptions
    help: ClassVar[str] = "Tell what crosses nodes."

    def __init__(self, options: PreviewOptions) -> None:
        super().__init__(options)
        self._measured: dict[str, int] = {}

    def overrides(self, job: Path, given: Sequence[str]) -> Sequence[str]:
        """What has been measured."""
        if self.options.profile:
            self._measured = profile(job, given)
        return [f"edges.sizes={json.dumps(self._measured)}"] if self._measured else []

    def tell(self, job: Prepared, cluster: ClusterView, plan: PlacementPlan) -> tuple[dict[str, Any], str]:
        """The numbers, and what they say."""
        found, by_role = crossing(job.request, plan), plan_job(job.request, cluster, [])
        traffic = {"total": found.total, "crossing": found.crossing, "unknown_flows": found.unknown}
        traffic["crossing_by_role"] = crossing(job.request, by_role).crossing
        texts = [_text(traffic)] if found.total else []
        if self._measured:
            sizes = "".join(f"\n    {label}: {size}" for label, size in self._measured.items())
            texts.append(f"\nmeasured; put it into the job file:\n\nedges:\n  sizes:{sizes}")
        return {"traffic": traffic}, "\n".join(texts)


def _text(traffic: Mapping[str, Any]) -> str:
    total, cross, by_role = traffic["total"], traffic["crossing"], traffic["crossing_by_role"]
    told = f"crosses nodes: {_size(cross)} of {_size(total)} a step ({cross / total:.0%})"
    told += f"; packed role by role: {_size(by_role)} ({by_role / total:.0%})"
    unknown = traffic["unknown_flows"]
    return told + (f"; {unknown} flows of unknown size do not count (edges.sizes)" if unknown else "")


def _size(amount: float) -> str:
    """``12.3 MB``."""
    return ByteSize(amount).human_readable(decimal=True, separator=" ")


PROFILE_STEPS = 3


def profile(path: Path, overrides: Sequence[str] = ()) -> dict[str, int]:
    """Run the first steps of a job inline and return the bytes that a step's call returns, by label.

    Raises `RolemeshError`, and `JobFailedError` if the job fails in these steps.
    """
    known = prepare(path, overrides)
    steps = PROFILE_STEPS + max((edge.lag for edge in known.graph.edges), default=0)
    steps = min(steps, known.job.spec.steps or steps)
    few = prepare(path, [*overrides, f"steps={steps}", "until={}", "observers=[]"])
    with TemporaryDirectory(prefix="rolemesh-profile-") as folder:
        engine = InlineEngine(InlineEngine.Options())
        result = engine.start(few, Path(folder, few.job.spec.name), say=print).wait()
    if result is None or result["status"] != "done":
        message = result["message"] if result else "it has no result"
        raise JobFailedError(f"the job failed while it was measured: {message}", where=str(path))
    activity = Activity(few.graph)
    calls = {op.label: sum(activity.active(op.id, step) for step in range(steps)) for op in few.graph.ops}
    return {label: round(size / calls[label]) for label, size in result["produced_bytes"].items() if calls[label]}
