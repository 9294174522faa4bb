"""Decide which checkpoints may be unpickled: a pickle in a file is a program that runs when it is read."""

from __future__ import annotations

from pathlib import Path

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_dataplane.codec import unpickles

__all__ = ["TRUST_FLAG", "read_edges", "written_by"]

TRUST_FLAG = "--trust-pickles"


def written_by(job_id: str, folder: str | Path) -> bool:
    """Return whether the checkpoint in `folder` is that of job `job_id` itself, and no other user has written a file of
    it.

    A job writes into its own run's folder only content that it made or checked, so it may return to it.
    """
    folder = Path(folder)
    manifest = disk.read_manifest(folder)
    if manifest.job_id != job_id:
        return False
    owner = folder.parents[1].stat().st_uid
    return all((folder / name).lstat().st_uid == owner for name in (disk.MANIFEST, *manifest.files))


def read_edges(
    folder: Path, name: str, producer: RankRef, graph: LogicalGraph, *, trusted: bool
) -> list[in_flight.InFlight]:
    """Return the records of the file `name` of the checkpoint in `folder`, which `producer` had sent.

    Raises `SnapshotError` for a damaged file and, unless it is `trusted`, for one with a pickled object: any header
    that asks for one, whatever the kind of its record. Decisions have no header, and who unpickles decisions takes none
    of a file (`SendLog.decisions`).
    """
    records = in_flight.read(*disk.place(folder, name))
    for record in () if trusted else records:
        if record.header and unpickles(record.header):
            edge = graph.edges[record.edge] if 0 <= record.edge < len(graph.edges) else None
            way = f"for {edge.param!r} of {graph.ops[edge.dst].label}" if edge is not None else f"on edge {record.edge}"
            raise SnapshotError(
                f"what {producer} had sent {way} at step {record.step} is a pickled object, and reading it would run "
                "whatever the file says",
                where=str(folder / name),
                remedy=f"if nobody but you could write this file, add {TRUST_FLAG}; or resume from where the edge "
                "carried arrays, tensors, a Batch or plain lists and dicts",
            )
    return records
