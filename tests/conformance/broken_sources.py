"""Sources that each do one thing wrong, and the standard tests that find it. Those at the end go wrong silently."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from rolemesh_sources import Offset, Reader, Records, Source

__all__ = ["BROKEN", "SETTINGS", "Sound"]


class Sound(Source):
    """Reads JSON lines. Each file of a folder is a partition, and an offset is a number of lines."""

    class Options(BaseModel, extra="forbid"):
        """The folder."""

        folder: str = Field(default="lines", description="The folder, relative to the job file.")

    options: Options

    def open(self, reader: Reader) -> None:
        self.reader, self.folder = reader, Path(reader.base, self.options.folder)

    def partitions(self) -> Sequence[str]:
        return sorted(path.name for path in self.folder.glob("*.jsonl"))

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        first = offset or 0
        rows = [json.loads(line) for line in self.lines(partition)[first : first + max_rows]]
        return Records(rows, first + len(rows) if rows else offset)

    def ended(self, position: Mapping[str, Offset]) -> bool:
        own = [each for each in self.partitions() if self.rank_of(each, self.reader.world_size) == self.reader.rank]
        return Path(self.folder, "END").exists() and not self.lag({name: position.get(name) for name in own})

    def lag(self, position: Mapping[str, Offset]) -> float | None:
        return float(sum(len(self.lines(name)) - (at or 0) for name, at in position.items()))

    def lines(self, partition: str) -> list[str]:
        return Path(self.folder, partition).read_text().splitlines()


class Generous(Sound):
    """Gives more records than a rank has asked for."""

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        return super().read(partition, offset, 2 * max_rows)


class Settled(Sound):
    """Looks for partitions once."""

    known: Sequence[str] = ()

    def partitions(self) -> Sequence[str]:
        self.known = self.known or super().partitions()
        return self.known


class Going(Sound):
    """Goes on behind what it has given, wherever a rank asks."""

    def open(self, reader: Reader) -> None:
        super().open(reader)
        self.at: dict[str, int] = {}

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        found = super().read(partition, self.at.get(partition, offset), max_rows)
        self.at[partition] = found.offset or 0
        return found


class Committing(Sound):
    """Takes what is acknowledged as read, and the next record too."""

    def acknowledge(self, position: Mapping[str, Offset]) -> None:
        Path(self.folder, "acknowledged").write_text(json.dumps(position))

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        path = Path(self.folder, "acknowledged")
        done = json.loads(path.read_text()).get(partition) if path.exists() else None
        return super().read(partition, offset if done is None else max(offset or 0, done + 1), max_rows)


class Hasty(Sound):
    """Ends as soon as nothing more comes, whatever is left to read."""

    def ended(self, position: Mapping[str, Offset]) -> bool:
        return Path(self.folder, "END").exists()


class Greedy(Sound):
    """Gives every partition to every rank."""

    def rank_of(self, partition: str, world_size: int) -> int:
        return self.reader.rank


class Odometer(Sound):
    """Counts what is read as what is left."""

    def lag(self, position: Mapping[str, Offset]) -> float | None:
        return float(sum(at or 0 for at in position.values()))

    def ended(self, position: Mapping[str, Offset]) -> bool:
        return Path(self.folder, "END").exists() and not Sound.lag(self, position)


class Late(Sound):
    """Leaves a record out where a rank begins behind the eighth one."""

    def open(self, reader: Reader) -> None:
        super().open(reader)
        self.begun: set[str] = set()

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        first = partition not in self.begun
        self.begun.add(partition)
        return super().read(partition, offset + 1 if first and self.faulty(offset or 0) else offset, max_rows)

    def faulty(self, at: int) -> bool:
        return at >= 8


class Segmented(Late):
    """Leaves a record out where a rank begins just at a segment of 64 records: it takes the segment before as read."""

    def faulty(self, at: int) -> bool:
        return at > 0 and at % 64 == 0


class Hashed(Sound):
    """Gives a partition to a rank by a hash that is another one in each process."""

    def rank_of(self, partition: str, world_size: int) -> int:
        return hash(partition) % world_size


def add(test: Any, base: Path, partition: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """See `SourceConformance.add`."""
    folder = base / "lines"
    folder.mkdir(exist_ok=True)
    with Path(folder, f"{partition}.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def finish(test: Any, base: Path) -> None:
    """See `SourceConformance.finish`."""
    Path(base, "lines", "END").touch()


SETTINGS: dict[str, Any] = {"add": add, "finish": finish, "timeout_s": 2.0}

LONG = "test_restarts_at_drawn_places_of_a_long_read_lose_and_repeat_nothing"
FIRST = "test_a_rank_can_begin_at_round_numbers_of_records"
OWNED = "test_each_partition_belongs_to_one_rank"
BROKEN: dict[type[Source], set[str]] = {
    Generous: {"test_each_record_comes_once_in_the_order_of_its_partition"},
    Settled: {"test_later_records_are_read"},
    Going: {"test_the_same_offset_gives_the_same_records_again"},
    Committing: {"test_an_acknowledged_record_is_no_offset_to_read_from"},
    Hasty: {"test_it_ends_when_all_is_read_and_nothing_comes"},
    Greedy: {OWNED},
    Odometer: {"test_the_backlog_is_a_number_that_goes_down"},
    Late: {LONG},
    Segmented: {FIRST},
    Hashed: {"test_the_owners_of_partitions_are_the_same_in_every_process"},
}
