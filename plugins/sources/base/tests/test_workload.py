"""The workload `source`, by itself: what it does while its source waits for something."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rolemesh import RankContext
from rolemesh_sources import Offset, Reader, Records, Source, SourceError
from rolemesh_sources import workload as reading
from rolemesh_sources.brokers import BrokerAway, BrokerClient, BrokerOptions, BrokerSource, Fetched, Look
from rolemesh_sources.workload import SourceOptions, SourceWorkload


class Slow(Source):
    """Five records, which are there after `asks` questions; `away` as long as they are not."""

    Options = None

    def __init__(self, asks: int, away: bool) -> None:
        self.asks, self.away = asks, away

    def partitions(self) -> Sequence[str]:
        return ["p"]

    def read(self, partition: str, offset: Offset, max_rows: int) -> Records:
        self.asks -= 1
        first = offset or 0
        if self.asks >= 0 or not max_rows:
            return Records((), offset)
        rows: list[Mapping[str, Any]] = [{"n": n} for n in range(first, min(first + max_rows, 5))]
        return Records(rows, first + len(rows))

    def ended(self, position: Mapping[str, Offset]) -> bool:
        return False

    def waiting(self) -> str:
        return "a broker" if self.away and self.asks >= 0 else ""


def workload(source: Source, wait_s: float | None = None, **place: int) -> SourceWorkload:
    options = SourceOptions(source="slow", rows=5, wait_s=wait_s)
    made = SourceWorkload(options)
    made.setup(RankContext(plugins={("sources", "slow"): lambda: source}, **place))
    return made


def test_a_rank_that_reads_again_does_not_give_up_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.02)
    made = workload(Slow(asks=8, away=True))
    made._ctx.notes["read"] = ([("p", 3, 3)], False, True)
    assert list(asyncio.run(made.next())["n"]) == [0, 1, 2]


def test_a_rank_that_reads_again_reports_a_record_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.02)
    made = workload(Slow(asks=1_000_000, away=False))
    made._ctx.notes["read"] = ([("p", 3, 3)], False, True)
    with pytest.raises(SourceError, match="3 records of partition 'p' at None that were there are gone"):
        asyncio.run(made.next())


def test_a_step_that_is_waited_for_goes_with_what_there_is() -> None:
    made = workload(Slow(asks=1_000_000, away=True))
    made._ctx.port.on_progress = lambda done, total: done >= 3
    assert asyncio.run(made.next()).rows == 0
    assert made._ctx.notes["read"] == ([], False, False)


@pytest.mark.parametrize("wait_s", [None, 600.0])
def test_a_rank_without_a_partition_returns_no_rows_at_once_and_says_so_once(
    wait_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = Slow(asks=0, away=False)
    ranks = [workload(source, wait_s, rank=rank, world_size=2) for rank in (0, 1)]
    reader = source.rank_of("p", 2)
    assert asyncio.run(ranks[reader].next()).rows == 5
    for _ in range(2):
        assert asyncio.run(ranks[1 - reader].next()).rows == 0
    said = [record.message for record in caplog.records if "nothing to read" in record.message]
    assert len(said) == 1
    assert "partitions: 1, ranks: 2" in said[0]


@pytest.mark.parametrize("every", [1, 10, 60, 64, 1000, 3600, 1 << 27])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_share_numbered_partitions(ranks: int, every: int) -> None:
    source, share = Slow(asks=0, away=False), 96 // ranks
    found = Counter(source.rank_of(f"log.{number * every}", ranks) for number in range(96))
    assert max(found.values()) <= (share if every == 1 else 2 * share)


def test_a_rank_waits_while_the_source_has_no_partition_for_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Slow(asks=1_000_000, away=False)
    monkeypatch.setattr(source, "partitions", list)
    made = workload(source, rank=1, world_size=2)
    made._ctx.port.on_progress = lambda done, total: done >= 3
    assert asyncio.run(made.next()).rows == 0
    assert made._looks == 3


def test_a_step_that_waits_long_says_how_many_records_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "LONG_S", 0.0)
    made = workload(Slow(asks=1_000_000, away=False))
    made._ctx.port.on_progress = lambda done, total: done >= 3
    asyncio.run(made.next())
    assert [record.message for record in caplog.records] == [
        "source slow: step 0 has 0 of 5 records and waits for more"
    ]


class Lists(BrokerClient):
    """A broker whose streams are lists of numbers. An offset is a place in the list."""

    where = "lists"

    def __init__(self, streams: dict[str, list[int]], away: int) -> None:
        self.streams, self.away = streams, away

    def look(self) -> Look:
        self.away -= 1
        if self.away >= 0:
            raise BrokerAway("not yet")
        return Look({name: len(each) or None for name, each in self.streams.items()})

    def fetch(self, asked: Mapping[str, Offset], wait_s: float) -> Mapping[str, Sequence[Fetched]]:
        found = {}
        for name, offset in asked.items():
            first = offset or 0
            rows = [Fetched(at + 1, {"n": n}) for at, n in enumerate(self.streams[name][first:], first)]
            found[name] = [Fetched(0, None)] if offset is None and rows else rows
        return found

    def find(self, partition: str, start: Any) -> Offset:
        return len(self.streams[partition]) or None

    def behind(self, newest: Offset, offset: Offset) -> float:
        return float(newest - (offset or 0))

    def acknowledge(self, position: Mapping[str, Offset]) -> None: ...

    def close(self) -> None: ...


class ListsSource(BrokerSource):
    """Reads `Lists`."""

    def __init__(self, options: BrokerOptions, streams: dict[str, list[int]], away: int = 0) -> None:
        super().__init__(options)
        self.made = Lists(streams, away)

    def client(self, reader: Reader) -> BrokerClient:
        return self.made


class KilledError(Exception):
    """The end of a rank."""


@pytest.mark.parametrize(
    ("before", "start", "away"),
    [
        ({"s": [90, 91]}, "newest", 0),
        ({"s": [90, 91]}, "newest", 2),
        ({"s": [90, 91]}, "2100-01-01T00:00:00Z", 0),
        ({"s": []}, "newest", 0),
        ({}, "newest", 0),
        ({"s": [], "t": [90]}, "newest", 0),
    ],
)
def test_a_rank_that_is_killed_before_its_first_record_begins_where_it_began(
    before: dict[str, list[int]], start: str, away: int
) -> None:
    options = BrokerOptions.model_validate({"streams": ["s", "t"], "start": start})
    first = workload(ListsSource(options, before, away))
    notes = first._ctx.notes

    def kill_when_noted(done: int, total: int) -> bool:
        if "read" in notes:
            raise KilledError
        return False

    first._ctx.port.on_progress = kill_when_noted
    with pytest.raises(KilledError):
        asyncio.run(first.next())
    first.teardown()
    later = {name: [*before.get(name, []), 1, 2] for name in {**before, "s": []}}
    second = workload(ListsSource(options, later), wait_s=0.3)
    second._ctx.notes.update(json.loads(json.dumps(dict(notes))))
    found = asyncio.run(second.next())
    second.teardown()
    assert sorted(found["n"]) == sorted([1, 2] * len(later))


def test_a_rank_that_is_drained_before_the_broker_answers_begins_when_it_answers() -> None:
    options = BrokerOptions.model_validate({"streams": ["s"], "start": "newest"})
    first = workload(ListsSource(options, {}, 1_000_000))
    first._ctx.port.on_progress = lambda done, total: True
    empty = asyncio.run(first.next())
    state = first.snapshot()
    first.teardown()
    streams = {"s": [90, 91]}
    second = workload(ListsSource(options, streams), wait_s=0.3)
    second.restore(state)
    streams["s"] += [1, 2]
    found = asyncio.run(second.next())
    second.teardown()
    assert (len(empty), list(found["n"])) == (0, [1, 2])


def test_a_full_first_step_is_a_beginning_also_after_a_kill() -> None:
    options = BrokerOptions.model_validate({"streams": ["s"], "start": "oldest"})
    first = workload(ListsSource(options, {"s": [90, 1, 2, 3, 4, 5]}))
    asyncio.run(first.next())
    notes = json.loads(json.dumps(dict(first._ctx.notes)))
    first.teardown()
    assert notes["read"][2] is True
