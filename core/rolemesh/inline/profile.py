"""How much each operator call returns: measured in a few steps of the job, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rolemesh.errors import JobFailedError
from rolemesh.graph.schedule import Activity
from rolemesh.inline.engine import one_process, run_inline
from rolemesh.job.prepared import prepare

__all__ = ["PROFILE_STEPS", "profile"]

PROFILE_STEPS = 3


def profile(path: Path, overrides: Sequence[str] = ()) -> dict[str, int]:
    """Run the first steps of a job inline and return the bytes that a step's call returns, by label.

    Collective roles run as one rank, which has the same values in one piece. Raises `RolemeshError`, and
    `JobFailedError` if the job fails in these steps.
    """
    known = prepare(path, overrides)
    alone = [
        f"roles.{name}.world_size=1"
        for name, role in known.job.spec.roles.items()
        if known.selection.roles[name].cls.group == "collective" and role.world_size > 1
    ]
    steps = min(PROFILE_STEPS + max((edge.lag for edge in known.graph.edges), default=0), known.job.spec.steps)
    few = prepare(path, [*overrides, *alone, f"steps={steps}", "observers=[]"])
    with TemporaryDirectory(prefix="rolemesh-profile-") as folder:
        result = run_inline(one_process(few), Path(folder))
    if result["status"] != "done":
        raise JobFailedError(f"the job failed while it was measured: {result['message']}", where=str(path))
    activity = Activity(few.graph)
    calls = {op.label: sum(activity.active(op.id, step) for step in range(steps)) for op in few.graph.ops}
    return {label: round(size / calls[label]) for label, size in result["produced_bytes"].items() if calls[label]}
