"""The traffic that ``rolemesh plan`` shows: measured sizes, and the bytes that cross nodes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic import BaseModel, ByteSize, Field

from rolemesh import ClusterView, PlacementPlan, PlacementRequest
from rolemesh.api.command import PlanOption
from rolemesh.api.plugin import NoOptions
from rolemesh.errors import JobFailedError
from rolemesh.graph.schedule import Activity
from rolemesh.job.planning import plan_job
from rolemesh.job.prepared import Prepared, prepare
from rolemesh_inline import InlineEngine
from rolemesh_pack import PackScheduler
from rolemesh_subgraph.traffic import crossing

__all__ = ["Preview", "compared"]

PROFILE_STEPS = 3
SHOWN = 4
"""Maximum number of nodes that are listed for a role."""


class PreviewOptions(BaseModel, extra="forbid"):
    """Options of ``rolemesh plan``."""

    profile: bool = Field(
        default=False, description="First run some steps in this process to measure the sizes of edges."
    )


class Preview(PlanOption):
    """Compares the bytes that cross nodes with those of a plan in which roles are packed one after the other.

    With ``--profile`` the job's first steps run in this process. The output then shows the sizes of the operators'
    results as `edges.sizes`, ready for the job file.
    """

    Options: ClassVar[type[BaseModel]] = PreviewOptions
    help: ClassVar[str] = "Tell what crosses nodes."

    def __init__(self, options: PreviewOptions) -> None:
        super().__init__(options)
        self._measured: dict[str, int] = {}

    def overrides(self, job: Path, given: Sequence[str]) -> Sequence[str]:
        """Return the measured sizes."""
        if self.options.profile:
            self._measured = profile(job, given)
        return [f"edges.sizes={json.dumps(self._measured)}"] if self._measured else []

    def tell(self, job: Prepared, cluster: ClusterView, plan: PlacementPlan) -> tuple[dict[str, Any], str]:
        """Return the numbers, and the comparison of the plan with the one in which roles are packed one after the
        other."""
        by_role = plan_job(job.request, cluster, [("pack", PackScheduler(NoOptions()).place)])
        found = compared(job.request, plan, by_role)
        texts = [_text(found)] if found["total"] else []
        if self._measured:
            sizes = "".join(f"\n    {label}: {size}" for label, size in self._measured.items())
            texts.append(f"\nmeasured; put it into the job file:\n\nedges:\n  sizes:{sizes}")
        return {"traffic": found}, "\n".join(texts)


def compared(request: PlacementRequest, plan: PlacementPlan, by_role: PlacementPlan) -> dict[str, Any]:
    """Compare both plans: the bytes that cross nodes, in total and per transfer, and each role's ranks per node."""
    total = crossing(request, plan)
    transfers = []
    for transfer in request.transfers:
        alone = replace(request, transfers=(transfer,))
        transfers.append(
            {
                "from": transfer.src,
                "to": transfer.dst,
                "pattern": transfer.pattern,
                "bytes": transfer.bytes,
                "crossing": crossing(alone, plan).crossing,
                "crossing_by_role": crossing(alone, by_role).crossing,
            }
        )
    return {
        "total": total.total,
        "crossing": total.crossing,
        "crossing_by_role": crossing(request, by_role).crossing,
        "unknown_transfers": total.unknown,
        "transfers": transfers,
        "nodes": {role.role: _nodes(plan, role.role) for role in request.roles},
        "nodes_by_role": {role.role: _nodes(by_role, role.role) for role in request.roles},
    }


def _nodes(plan: PlacementPlan, role: str) -> dict[str, int]:
    return dict(sorted(Counter(plan.slots[a.slot].node for a in plan.assignments if a.role == role).items()))


def _text(found: Mapping[str, Any]) -> str:
    total, cross, by_role = found["total"], found["crossing"], found["crossing_by_role"]
    told = f"crosses nodes: {_size(cross)} of {_size(total)} a step ({cross / total:.0%})"
    told += f"; packed role by role: {_size(by_role)} ({by_role / total:.0%})"
    unknown = found["unknown_transfers"]
    told += f"; {unknown} transfers of unknown size do not count (edges.sizes)" if unknown else ""
    transfers: list[Sequence[str]] = [("of them cross nodes", "a step", "packed", "this plan")]
    transfers += [
        (
            f"{transfer['from']} → {transfer['to']}" + (", all to all" if transfer["pattern"] == "all" else ""),
            *(_size(transfer[name]) for name in ("bytes", "crossing_by_role", "crossing")),
        )
        for transfer in found["transfers"]
        if transfer["bytes"] is not None
    ]
    ranks: list[Sequence[str]] = [("ranks on nodes", "packed", "this plan")]
    for role in found["nodes"]:
        ranks.append((role, *(_counted(found[name][role]) for name in ("nodes_by_role", "nodes"))))
    return "\n".join([told, "", *_columns(transfers), "", *_columns(ranks)])


def _counted(nodes: Mapping[str, int]) -> str:
    """Return ``node-0 2, node-1 1``; of many nodes only the first ones."""
    told = [f"{node} {count}" for node, count in nodes.items()]
    return ", ".join(told[:SHOWN]) + (f", … ({len(told)} nodes)" if len(told) > SHOWN else "")


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _size(amount: float) -> str:
    """Return the size: ``12.3 MB``."""
    return ByteSize(amount).human_readable(decimal=True, separator=" ")


def profile(path: Path, overrides: Sequence[str] = ()) -> dict[str, int]:
    """Run the first steps of a job inline. Return the bytes that a step's call returns, by label.

    Raises `RolemeshError`, and `JobFailedError` if the job fails in these steps.
    """
    known = prepare(path, overrides)
    steps = PROFILE_STEPS + max((edge.lag for edge in known.graph.edges), default=0)
    steps = min(steps, known.job.spec.steps or steps)
    few = prepare(path, [*overrides, f"steps={steps}", "until={}", "observers=[]"])
    with TemporaryDirectory(prefix="rolemesh-profile-") as folder:
        engine = InlineEngine(InlineEngine.RunOptions())
        result = engine.start(few, Path(folder, few.job.spec.name), say=print).wait()
    if result is None or result["status"] != "done":
        message = result["message"] if result else "it has no result"
        raise JobFailedError(f"the job failed while it was measured: {message}", where=str(path))
    activity = Activity(few.graph)
    calls = {op.label: sum(activity.active(op.id, step) for step in range(steps)) for op in few.graph.ops}
    return {label: round(size / calls[label]) for label, size in result["produced_bytes"].items() if calls[label]}
