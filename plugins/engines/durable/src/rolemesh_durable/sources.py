"""The API of a source: records that keep coming, in partitions, each with an offset. A kind of plugin of this engine's.

A job file lists sources under ``plugins.sources``; a role with the workload `source` reads from one, by its name there.
Where a role has read to is part of its snapshot, so a source remembers nothing: it is asked for the records behind an
offset, and gives the same ones whenever it is asked again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from rolemesh.api.batch import Shard
from rolemesh.api.plugin import Plugin
from rolemesh.errors import RolemeshError
from rolemesh.kinds import Kind

__all__ = ["KIND", "Gathered", "Offset", "Reader", "Records", "Source", "SourceError"]

KIND = Kind(
    "sources",
    "source",
    "rolemesh_durable.sources:Source",
    ("rank",),
    conformance="rolemesh_testing:SourceConformance",
    known={"files": "rolemesh-files", "nats": "rolemesh-nats", "redis": "rolemesh-redis"},
)

Offset: TypeAlias = Any
"""Where the next record of a partition lies: a JSON value that only the source understands, None for its beginning."""


class SourceError(RolemeshError):
    """A source cannot give what it is asked for."""

    exit_code = 1


class Reader(msgspec.Struct, frozen=True):
    """Who reads: a rank of a role. `base` is the job file's folder."""

    job: str
    role: str
    rank: int
    world_size: int
    base: str


class Records(msgspec.Struct, frozen=True):
    """Some records of one partition, and the offset behind them. None: it is at its end, and gone for good."""

    rows: Sequence[Mapping[str, Any]]
    offset: Offset


class Source(Plugin, ABC):
    """Base of sources (entry-point group ``rolemesh.sources``). One object per rank, which calls it from one thread.

    Nothing here waits for records to come: whoever asks in vain asks again. What goes wrong is a `SourceError` with
    place and remedy.
    """

    def open(self, reader: Reader) -> None:
        """Called once, before everything else: connect, look whether it is there."""

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """The partitions that there are now, of all ranks. Called in every step, and while the rank waits."""

    @abstractmethod
    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        """The records of `partition` from `offset` on: those that are there, `max_rows` at most, in their order.

        It is asked at the offset where it has stopped, and after a restart at an earlier one, for the same records
        again. No records and another offset say that there is nothing to be read between the two.
        """

    @abstractmethod
    def ended(self, position: Mapping[str, Offset]) -> bool:
        """Whether a reader that is at `position`, by partition, has everything: nothing comes any more for it, and no
        partition of its own. A source without an end says False."""

    def lag(self, position: Mapping[str, Offset]) -> float | None:
        """How much there is behind `position`, in a unit of the source's; None if it cannot say. For metrics."""
        return None

    def waiting(self) -> str:
        """What the source itself waits for, such as a broker that is away; empty if for nothing but records."""
        return ""

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """Nobody will ask for what lies before `position` (partitions that have got further): it is in a checkpoint."""

    def rank_of(self, partition: str, world_size: int) -> int:
        """Which of `world_size` ranks reads `partition`: by a hash of its name, so that partitions may come and go."""
        return crc32(partition.encode()) % world_size

    def close(self) -> None:
        """Nothing is asked any more."""


class Gathered(dict[str, Shard]):
    """What a workload gives as a part of its snapshot right after ``setup`` gets there, when it is restored with
    another number of ranks, the shards of all of them, whole. Their names must differ from rank to rank."""
