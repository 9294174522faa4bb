"""Conformance of a source: the guarantees for a role that reads it, is killed and reads again."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeAlias

import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_sources import Offset, Reader, Source
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["SourceConformance"]

Row: TypeAlias = Mapping[str, Any]
LOOK_S = 0.02
"""Seconds between two looks for expected records."""


class SourceConformance(PluginConformance):
    """Subclass it with `plugin`, `options`, and methods that `add` records and `finish` the stream.

    Give options of a source that has an end and finds new partitions at once.
    """

    kind = "sources"
    long_rows: ClassVar[int] = 150
    """Number of records in each of the three partitions of the long read."""

    # --------------------------------------------------------------------------------------------- what is to be given

    @abstractmethod
    def add(self, base: Path, partition: int, rows: Sequence[Row]) -> None:
        """Append `rows` to the partition with the number `partition` of this test: 0, 1, … Create it if it does not
        exist.
        """

    @abstractmethod
    def finish(self, base: Path) -> None:
        """End the stream."""

    def row_of(self, record: Row) -> Row:
        """Return the row that `add` has written for this record of the source: the record itself, unless the source has
        a form of its own.
        """
        return record

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def opened(
        self, cls: type[Source], checked_options: BaseModel, base: Path, request: pytest.FixtureRequest
    ) -> Iterator[Any]:
        """``opened(rank=0, world_size=1)`` opens one more source."""
        if type(self).add is SourceConformance.add:
            pytest.skip("the test class has no add(), so the source has no records")
        made: list[Source] = []

        def make(rank: int = 0, world_size: int = 1) -> Source:
            made.append(cls(checked_options))
            reader = Reader("job", "data", rank, world_size, str(base))
            needed(request, "the source cannot be opened", lambda: made[-1].open(reader))
            return made[-1]

        yield make
        for source in made:
            source.close()

    def read(
        self, source: Source, position: dict[str, Offset], count: int, own: Sequence[str] | None = None
    ) -> dict[str, list[Row]]:
        """Read `count` records from `position` on, and advance `position`.

        Returns them by partition (all, or `own`). Fails if they do not come.
        """
        found: dict[str, list[Row]] = {}
        until = time.monotonic() + self.timeout_s
        while sum(map(len, found.values())) < count:
            assert time.monotonic() < until, f"of {count} records there are {found}"
            before = sum(map(len, found.values()))
            for partition in own if own is not None else source.partitions():
                most = min(2, count - sum(map(len, found.values())))
                if not most:
                    break
                got = source.read(partition, position.get(partition), most)
                assert len(got.rows) <= most, "it has given more than it was asked for"
                position[partition] = json.loads(json.dumps(got.offset))
                found.setdefault(partition, []).extend(map(self.row_of, got.rows))
            if sum(map(len, found.values())) == before:
                time.sleep(LOOK_S)
        return {partition: rows for partition, rows in found.items() if rows}

    def until_ended(self, source: Source, position: dict[str, Offset]) -> None:
        """Wait until the source reports its end at `position`, where nothing is left to read. Fails if it does not."""
        until = time.monotonic() + self.timeout_s
        while not source.ended(position):
            assert time.monotonic() < until, "it does not end"
            assert not any(source.read(p, at, 9).rows for p, at in position.items())
            time.sleep(LOOK_S)

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """The constructor opens nothing."""
        cls(options)

    # --------------------------------------------------------------------------------------------------------- tests

    def test_each_record_comes_once_in_the_order_of_its_partition(self, opened: Any, base: Path) -> None:
        """A read returns at most the requested number of records."""
        rows = [[{"n": 10 * p + n} for n in range(5)] for p in range(3)]
        for number, each in enumerate(rows):
            self.add(base, number, each)
        source, position = opened(), dict[str, Offset]()
        found = self.read(source, position, 15)
        assert sorted(found.values(), key=str) == sorted(rows, key=str)
        assert not any(source.read(p, position[p], 9).rows for p in source.partitions())

    def test_later_records_are_read(self, opened: Any, base: Path) -> None:
        """New records appear in an existing partition, and in a new one."""
        self.add(base, 0, [{"n": 0}])
        source, position = opened(), dict[str, Offset]()
        assert list(self.read(source, position, 1).values()) == [[{"n": 0}]]
        self.add(base, 0, [{"n": 1}])
        self.add(base, 1, [{"n": 2}])
        assert sorted(self.read(source, position, 2).values(), key=str) == [[{"n": 1}], [{"n": 2}]]

    def test_the_same_offset_gives_the_same_records_again(self, opened: Any, base: Path) -> None:
        """This holds for this object, and for another one in a restarted rank. The offset travels as JSON."""
        self.add(base, 0, [{"n": n} for n in range(6)])
        source, position = opened(), dict[str, Offset]()
        self.read(source, position, 2)
        before = dict(position)
        rest = self.read(source, position, 4)
        self.add(base, 0, [{"n": 6}])
        for again in (source, opened()):
            assert self.read(again, dict(before), 4) == rest
        (last,) = self.read(opened(), position, 1).values()
        assert last == [{"n": 6}]

    def test_an_acknowledged_record_is_no_offset_to_read_from(self, opened: Any, base: Path) -> None:
        """An acknowledgement does not change the position. It says which records no rank will read again."""
        self.add(base, 0, [{"n": n} for n in range(6)])
        source, position = opened(), dict[str, Offset]()
        self.read(source, position, 2)
        source.acknowledge(dict(position))
        later = dict(position)
        (rows,) = self.read(source, later, 4).values()
        assert rows == [{"n": n} for n in range(2, 6)]
        (again,) = self.read(opened(), position, 4).values()
        assert again == rows

    def test_it_ends_when_all_is_read_and_nothing_comes(self, opened: Any, base: Path) -> None:
        """The source ends only if both hold."""
        self.add(base, 0, [{"n": 0}, {"n": 1}])
        source, position = opened(), dict[str, Offset]()
        assert not source.ended(position)
        self.finish(base)
        assert not source.ended(position)
        self.read(source, position, 2)
        self.until_ended(source, position)

    def test_each_partition_belongs_to_one_rank(self, opened: Any, base: Path) -> None:
        """All ranks agree on the owners. The ranks of a role end when their own partitions are read."""
        for number in range(6):
            self.add(base, number, [{"n": number}])
        self.finish(base)
        sources = [opened(rank, 3) for rank in range(3)]
        names = sorted(sources[0].partitions())
        assert [sorted(source.partitions()) for source in sources] == [names] * 3
        owners = [[source.rank_of(name, 3) for name in names] for source in sources]
        assert owners[0] == owners[1] == owners[2]
        assert set(owners[0]) <= {0, 1, 2}
        rows: list[Row] = []
        until = time.monotonic() + self.timeout_s
        for rank, source in enumerate(sources):
            own = [name for name, owner in zip(names, owners[0], strict=True) if owner == rank]
            position = dict[str, Offset]()
            while not source.ended(position):
                assert time.monotonic() < until, f"rank {rank} does not end; of 6 records there are {rows}"
                for partition in own:
                    got = source.read(partition, position.get(partition), 2)
                    position[partition] = json.loads(json.dumps(got.offset))
                    rows += map(self.row_of, got.rows)
        assert sorted(rows, key=lambda row: int(row["n"])) == [{"n": number} for number in range(6)]

    def test_the_owners_of_partitions_are_the_same_in_every_process(
        self, cls: type[Source], record: PluginRecord, opened: Any, base: Path
    ) -> None:
        """Ranks on two nodes have two hash seeds. A partition must not belong to both of them, or to none."""
        if cls.rank_of is Source.rank_of:
            pytest.skip("it has the rank_of() of all sources")
        for number in range(6):
            self.add(base, number, [{"n": number}])
        subject, names = Subject(record, dict(self.options), str(base)), json.dumps(sorted(opened().partitions()))
        one, other = (ask_elsewhere(_owners_there, subject, names.encode(), hash_seed=seed) for seed in (1, 2))
        assert one == other, f"the ranks of {names} are {one.decode()} in a process, and {other.decode()} in another"

    def test_a_rank_can_begin_at_round_numbers_of_records(self, opened: Any, base: Path) -> None:
        """There a file, a page or a message may begin. Only a rank that begins just there shows some faults."""
        self.add(base, 0, [{"n": n} for n in range(self.long_rows)])
        source, position, places = opened(), dict[str, Offset](), list[dict[str, Offset]]()
        for number in range(self.long_rows):
            places.append(dict(position))
            assert list(self.read(source, position, 1).values()) == [[{"n": number}]]
        for number, place in enumerate(places):
            if number > 2 and number % 8 and number % 10 and number < self.long_rows - 1:
                continue
            (rows,) = self.read(again := opened(), dict(place), min(2, self.long_rows - number)).values()
            again.close()
            assert [row["n"] for row in rows] == [number, number + 1][: len(rows)], (
                f"a rank that begins at {place!r}, before record {number}, gets {rows}"
            )

    def test_restarts_at_drawn_places_of_a_long_read_lose_and_repeat_nothing(self, opened: Any, base: Path) -> None:
        """A rank comes back at an earlier position, with a new object. Some faults show only late, or only then."""
        for number in range(3):
            self.add(base, number, [{"n": 1000 * number + n} for n in range(self.long_rows)])
        self.finish(base)
        random, found, position = Random(f"{self.plugin}"), dict[str, list[Row]](), dict[str, Offset]()
        source, kept = opened(), (dict(position), dict[str, int]())
        until = time.monotonic() + self.timeout_s
        while not source.ended(position):
            count = sum(map(len, found.values()))
            assert time.monotonic() < until, f"it does not end; of {3 * self.long_rows} records there are {count}"
            for partition in source.partitions():
                got = source.read(partition, position.get(partition), random.randint(1, 9))
                position[partition] = json.loads(json.dumps(got.offset))
                found.setdefault(partition, []).extend(map(self.row_of, got.rows))
            if sum(map(len, found.values())) == count:  # a broker's records are on their way
                time.sleep(LOOK_S)
                continue
            drawn = random.randrange(8)
            if drawn == 0:  # the rank dies, and its successor begins at the last snapshot
                source.close()
                source, position = opened(), dict(kept[0])
                for partition, rows in found.items():
                    del rows[kept[1].get(partition, 0) :]
            elif drawn < 3:
                kept = dict(position), {partition: len(rows) for partition, rows in found.items()}
                source.acknowledge({partition: at for partition, at in position.items() if at is not None})
        for partition, rows in found.items():
            first = rows[0]["n"] // 1000 * 1000 if rows else 0
            wrong = next((at for at, row in enumerate(rows) if row["n"] != first + at), None)
            assert wrong is None, f"after restarts, record {wrong} of {partition!r} is {rows[wrong or 0]}"
        assert sum(map(len, found.values())) == 3 * self.long_rows, (
            f"after restarts there are {sum(map(len, found.values()))} of {3 * self.long_rows} records"
        )

    def test_the_backlog_is_a_number_that_goes_down(self, opened: Any, base: Path) -> None:
        """The source may also return None, if it cannot tell."""
        self.add(base, 0, [{"n": n} for n in range(6)])
        source, position = opened(), dict[str, Offset]()
        self.read(source, position, 1)
        if (before := source.lag(position)) is None:
            pytest.skip("it cannot say")
        self.read(source, position, 5)
        after = source.lag(position)
        assert after is not None
        assert before > after >= 0


def _owners_there(subject: Subject, names: bytes) -> bytes:
    cls, options = subject.loaded()
    source = cls(options)
    source.open(Reader("job", "data", 0, 3, subject.base))
    return json.dumps([source.rank_of(name, 3) for name in json.loads(names)]).encode()
