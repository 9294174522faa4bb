"""The source of ``--resume``: the checkpoint from which a new job starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import EXIT_NOT_STARTED, RolemeshError
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.trust import read_edges
from rolemesh_console.text import amount
from rolemesh_durable.protocol.edge import hold_of
from rolemesh_durable.runs import Run, find_run
from rolemesh_runtime.earlier import clean_command, size_of
from rolemesh_runtime.lock import is_held

__all__ = ["ResumePoint", "Unfinished", "check_in_flight", "check_pickles", "find_origin", "find_source", "moved"]
__all__ += ["unfinished"]


class ResumePoint(NamedTuple):
    """A run's folder, and the requested step, or None for the newest."""

    run_dir: Path
    step: int | None


class Unfinished(NamedTuple):
    """An unfinished run, and the step of its newest checkpoint."""

    run_dir: Path
    step: int


def unfinished(run_dir: Path) -> Unfinished | None:
    """Return the unfinished run in a folder; None if it is done and was not drained, or if it left no state."""
    try:
        result = Run(run_dir).result() or {}
        drained = "stop --drain" in str(result.get("reason")) and result["committed_steps"] != result["steps"]
        if result.get("status") == "done" and not drained:
            return None
        found, _ = _newest_intact(ResumePoint(run_dir, None))
        if found is None or found.manifest is None:
            return None
        kept = any(any(disk.states(found.path, role)) for role in found.manifest.world_sizes)
    except (RolemeshError, OSError):
        return None
    return Unfinished(run_dir, found.step) if kept else None


def moved(earlier: Path, *, resumed: bool) -> str:
    """Return the message about an earlier run that is now in the folder `earlier`, with its size.

    `resumed`: the new run resumes a run.
    """
    size = f"{amount(size_of(earlier))}; {clean_command(earlier.parents[1])} lists and deletes such runs"
    where = f"the run before is now in {earlier} ({size})"
    if resumed or (left := unfinished(earlier)) is None:
        return where
    return f"{where}; it was not done: add --resume {shlex.quote(str(earlier))} to go on after its step {left.step}"


def find_source(reference: str, runs: Path) -> ResumePoint:
    """Return the source. `reference` is a job's name in the runs folder, a run's folder, or the folder of one snapshot
    in it.

    Raises `UnknownRunError`.
    """
    path = Path(reference)
    if path.name.startswith("step-") and path.parent.name == "snapshots" and path.is_dir():
        return ResumePoint(path.resolve().parents[1], int(path.name.removeprefix("step-")))
    return ResumePoint(find_run(reference, runs).path.resolve(), None)


def find_origin(
    source: ResumePoint, steps: int | None, stateful: Sequence[str], flow: Sequence[str]
) -> tuple[disk.DiskCheckpoint, list[str]]:
    """Return the newest intact snapshot of `source`, and the faults of newer ones.

    For a run that ended before its first snapshot, it is the snapshot from which that run was itself resumed.
    `stateful` are the new job's roles that keep state, `steps` is its total number of steps (None: no end), and `flow`
    has the lines of its graph. Raises `SnapshotError` if there is none, or if it does not fit the job.
    """
    found, damaged = _newest_intact(source)
    where = str(disk.snapshots_folder(source.run_dir))
    if found is None or found.manifest is None:
        what = "there is no intact snapshot" + (f" of step {source.step}" if source.step is not None else "")
        remedy = (
            "a job writes one after its last step, and earlier ones with a failover ladder or snapshots.persist_every; "
            "`rolemesh checkpoint list` shows them"
        )
        if is_held(source.run_dir):
            what += ": a job runs in this folder, and has written none yet"
            remedy = f"wait, or name the run before, which that job has moved to {source.run_dir.parent / '.earlier'}"
        raise _not_started("\n  ".join([what, *damaged]), where, remedy)
    errors: list[str] = []
    if steps is not None and found.step >= steps - 1:
        errors.append(f"it was taken after step {found.step}, and the job ends after step {steps - 1}: raise `steps`")
    errors += [
        f"it has no state of role {role}, which keeps some"
        for role in stateful
        if not any(name.startswith(f"{role}/") for name in found.manifest.files)
    ]
    before = found.manifest.flow
    errors += [f"its flow had {line}" for line in before if line not in flow]
    errors += [f"the flow has {line}, which it does not know" for line in flow if before and line not in before]
    if errors:
        raise _not_started("the snapshot does not fit this job: " + "; ".join(errors), str(found.path))
    return found, damaged


def check_pickles(found: disk.DiskCheckpoint, graph: LogicalGraph, *, trusted: bool) -> None:
    """Raise `SnapshotError` if the snapshot has pickled objects and is not `trusted`. Ranks check it again."""
    assert found.manifest is not None
    for role, size in found.manifest.world_sizes.items():
        for rank in disk.ranks_with(found.manifest, role, "edges"):
            if not trusted:
                name = disk.edges_file(role, rank, size)
                try:
                    read_edges(found.path, name, RankRef(role, rank), graph, trusted=False)
                except SnapshotError as error:
                    raise _not_started(error.what, error.where or "", error.remedy) from error


def check_in_flight(found: disk.DiskCheckpoint, graph: LogicalGraph, unrepeated: Sequence[str]) -> None:
    """Raise `SnapshotError` if ranks need values that were in flight, and the snapshot has none.

    A job without snapshots keeps no log of sent values; after its last step only states are written. `unrepeated` are
    the roles that are restored from their states alone.
    """
    assert found.manifest is not None
    activity = Activity(graph)
    needed = [edge for edge in graph.edges if hold_of(edge, graph, activity, unrepeated) > 0]
    if needed and not disk.has_log(found.path, found.manifest):
        edges = ", ".join(f"{graph.ops[edge.src].label} → {graph.ops[edge.dst].label}" for edge in needed)
        raise _not_started(
            f"the snapshot of step {found.step} has the roles' states, and nothing that was in flight ({edges})",
            str(found.path),
            "resume from a run that had a failover ladder or snapshots.persist_every; export what this one has",
        )


def _newest_intact(source: ResumePoint) -> tuple[disk.DiskCheckpoint | None, list[str]]:
    found, damaged = disk.newest_intact(source.run_dir, source.step)
    info = Run(source.run_dir).info()
    if found is None and source.step is None and info is not None and info.origin:
        origin = Path(info.origin)
        found, older = disk.newest_intact(origin.parents[1], int(origin.name.removeprefix("step-")))
        damaged += older
    return found, damaged


def _not_started(what: str, where: str, remedy: str | None = None) -> SnapshotError:
    error = SnapshotError(what, where=where, remedy=remedy)
    error.exit_code = EXIT_NOT_STARTED
    return error
