"""The files of a persisted snapshot, for the consumers and producers of a job that continues from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.trust import read_edges
from rolemesh_durable.protocol.rank.origin_values import Assembly, StoredValues
from rolemesh_runtime.values import combine, gather, select

__all__ = ["OriginFiles"]


class OriginFiles(StoredValues):
    """The persisted snapshot in `folder`, as rank `rank` of `world_size` of a role sees it."""

    def __init__(
        self, folder: str | Path, graph: LogicalGraph, rank: int, world_size: int, *, trusted: bool = False
    ) -> None:
        """`trusted`: reading may unpickle objects in the files, which runs code that they contain."""
        folder = Path(folder)
        manifest = disk.read_manifest(folder)
        sizes = manifest.world_sizes

        @cache
        def records(role: str, producer: int) -> list[in_flight.InFlight]:
            name = disk.edges_file(role, producer, sizes.get(role, 0))
            if name not in manifest.files:
                return []
            return read_edges(folder, name, RankRef(role, producer), graph, trusted=trusted)

        self.world_sizes: Mapping[str, int] = sizes
        """The world sizes of the snapshot."""
        self.records = records
        """Returns all records that a rank, given as role and number, had sent.

        Raises `SnapshotError` for damaged files, and for pickled objects that are not `trusted`.
        """
        super().__init__(graph, sizes, records, Assembly(gather, select, combine), rank, world_size, where=str(folder))
