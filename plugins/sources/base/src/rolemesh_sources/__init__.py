"""The API of a source: records that keep coming, in partitions, each with an offset.

A job file lists sources under ``plugins.sources``. A role with the workload `source` reads one of them, by its name
there. The role's snapshot holds the offsets up to which its ranks have read, so a source remembers nothing: the ranks
ask for the records behind an offset, and get the same records whenever they ask again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias
from zlib import crc32

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh.errors import RolemeshError
from rolemesh.kinds import Kind

__all__ = ["KIND", "Offset", "Reader", "Records", "Source", "SourceError"]

KIND = Kind("sources", "source", "rolemesh_sources:Source", ("rank",), conformance="rolemesh_testing:SourceConformance")

Offset: TypeAlias = Any
"""Place of the next record of a partition: a JSON value that only the source understands; None is the beginning."""


class SourceError(RolemeshError):
    """A source cannot give the records that a rank asks for."""

    exit_code = 1


class Reader(msgspec.Struct, frozen=True):
    """The rank of a role that reads. `base` is the job file's folder."""

    job: str
    role: str
    rank: int
    world_size: int
    base: str


class Records(msgspec.Struct, frozen=True):
    """Records of one partition, and the offset behind them. The offset None ends the partition for good."""

    rows: Sequence[Mapping[str, Any]]
    offset: Offset


class Source(Plugin, ABC):
    """Base of sources (entry-point group ``rolemesh.sources``). Each rank has one object, and calls it from one thread.

    No method waits for records: a rank that got none asks again. A method that fails raises `SourceError` with place
    and remedy.
    """

    needs: ClassVar[str] = ""
    """Module that an extra brings. Without it a job does not start; the error names the extra, from the entry-point
    group ``rolemesh.offered``. "" for none."""

    def open(self, reader: Reader) -> None:
        """Connect, and look whether the source is there. The rank calls this once, before all other methods."""

    def resume(self, position: Mapping[str, Offset]) -> None:
        """The job has begun before, and this rank goes on at `position`: partitions without an offset are new.

        The rank calls this after `open`, before it reads. A source that may begin elsewhere than at the oldest records
        begins new partitions with their oldest then, since all their records have arrived after the job's start.
        """

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """The partitions that exist now, of all ranks. The rank calls this in every step, and while it waits."""

    @abstractmethod
    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        """The records of `partition` from `offset` on that exist now, `max_rows` at most, in their order.

        The rank asks at the offset behind the last records. After a restart it asks at an earlier offset, and must get
        the same records again. No records and another offset say that nothing lies between the two offsets.
        """

    @abstractmethod
    def ended(self, position: Mapping[str, Offset]) -> bool:
        """Whether a reader at `position` (offset by partition) has all records that it will ever get.

        No more records come in its partitions then, and no partition comes. A source without an end returns False.
        """

    def lag(self, position: Mapping[str, Offset]) -> float | None:
        """Amount of data behind `position`, in a unit of the source's, for metrics; None if the source cannot say."""
        return None

    def waiting(self) -> str:
        """The thing that the source waits for, such as a broker that is away; "" if it waits for records only."""
        return ""

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        """All records before `position` are in a checkpoint, so no rank asks for them again.

        `position` has the partitions whose offsets have changed.
        """

    def rank_of(self, partition: str, world_size: int) -> int:
        """The rank, of `world_size`, that reads `partition`.

        A hash of the name decides, so partitions may come and go. Numbers in the name count on from it, up to the next
        multiple of `world_size`: so ranks share partitions evenly that are numbered 0, 1, 2, and in about equal parts
        those that are numbered 0, 3600, 7200.
        """
        rest, *numbers = re.sub("[0-9]+", "", partition), *re.findall("[0-9]+", partition)
        rounds = [divmod(int(each), world_size) for each in numbers]
        counted = sum(one + (crc32(b"%d" % full) if full else 0) for full, one in rounds)
        return (crc32(rest.encode()) + counted) % world_size

    def close(self) -> None:
        """Free what the source holds. The rank calls no other method afterwards."""
