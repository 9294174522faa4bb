"""The workload `source`, by itself: what it does while its source waits for something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rolemesh import RankContext
from rolemesh_durable import reading
from rolemesh_durable.reading import SourceOptions, SourceWorkload
from rolemesh_durable.sources import Offset, Records, Source, SourceError


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


def workload(source: Source, wait_s: float | None = None) -> SourceWorkload:
    options = SourceOptions(source="slow", rows=5, wait_s=wait_s)
    made = SourceWorkload()
    made.setup(RankContext(options=options, plugins={("sources", "slow"): lambda: source}))
    return made


def test_who_reads_again_does_not_give_up_while_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.02)
    made = workload(Slow(asks=8, away=True))
    made._ctx.notes["read"] = ([("p", 3, 3)], False)
    assert list(asyncio.run(made.next())["n"]) == [0, 1, 2]


def test_who_reads_again_what_is_gone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "AGAIN_S", 0.02)
    made = workload(Slow(asks=1_000_000, away=False))
    made._ctx.notes["read"] = ([("p", 3, 3)], False)
    with pytest.raises(SourceError, match="3 records of partition 'p' at None that were there are gone"):
        asyncio.run(made.next())


def test_a_step_that_is_waited_for_goes_with_what_there_is() -> None:
    made = workload(Slow(asks=1_000_000, away=True))
    made._ctx._on_progress = lambda done, total: done >= 3
    began = time.monotonic()
    assert asyncio.run(made.next()).rows == 0
    assert time.monotonic() - began < 5
    assert made._ctx.notes["read"] == ([], False)
