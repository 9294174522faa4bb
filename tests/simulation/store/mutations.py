"""Faults put into the real code, each of which an invariant must catch. Most are what the code once did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from tests.simulation.patches import method
from tests.simulation.seeds import Mutation

from rolemesh.api.observer import StepMetrics
from rolemesh.runs import jsonl
from rolemesh_durable.journal import line_file
from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.journal.line_file import LineFile
from rolemesh_durable.master import journal, writer
from rolemesh_durable.master.journal import Journal
from rolemesh_durable.master.publication import Publication
from rolemesh_durable.protocol.master.own_time import OwnTime
from rolemesh_durable.protocol.metrics.merge import LineAssembler

__all__ = ["MUTATIONS"]


def _does_nothing(*_: Any) -> None:
    return None


def _counts_as_written(original: Any) -> Any:
    def append(self: Any, lines: Any) -> None:
        try:
            original(self, lines)
        except OSError:
            self.last = max([self.last, *(number for number, _ in lines)])

    return append


def _told_before(original: Any) -> Any:
    def attempt(self: Any) -> float:
        if lines := [news for news in self._batch if isinstance(news, StepMetrics)]:
            self._written(lines[-1].step, False)
        return float(original(self))

    return attempt


def _by_the_time_of_day(original: Any) -> Any:
    def add(self: Any, agent: Any, lines: Any, now: float, committed: int, *, wall: float) -> Any:
        return original(self, agent, lines, wall, committed, wall=wall)

    return add


def _any_failure_is_fencing(original: Any) -> Any:
    def write(self: Any, before: Any, after: Any, **more: Any) -> None:
        original_root = self.store.root
        with patch.object(self.store, "root", lambda: None if (text := original_root()) else text):
            original(self, before, after, **more)

    return write


def _stands_for_one_less(original: Any) -> Any:
    def compact(self: Any, epoch: int, seq: int, head: str, keep: int) -> None:
        original(self, epoch, seq - 1, head, keep)

    return compact


def _raises_at_what_is_torn(_: Any) -> Any:
    def read_metrics(path: Path) -> Iterator[Any]:
        for line in path.read_bytes().splitlines() if path.exists() else ():
            yield msgspec.convert(json.loads(line), StepMetrics)

    return read_metrics


def _nothing_told_is_all(original: Any) -> Any:
    return lambda path: original(path) or {"seq": 10**9}


def _reading_ends_it(original: Any) -> Any:
    def take_over(self: Any, then: Any, *, patient: bool) -> None:
        original(self, then, patient=False)

    return take_over


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("an append that fails ends the master", ("nothing ends a master",),
             lambda: patch.object(writer, "may_pass", lambda error: False)),
    Mutation("a claim that fails ends the master", ("nothing ends a master",),
             method(Journal, "claim", _reading_ends_it)),
    Mutation("an append whose confirmation was lost counts as refused", ("nothing ends a master",),
             method(EventLog, "_write", _any_failure_is_fencing), first=7),
    Mutation("a head stands for one event less than it knows", ("the journal is what was acknowledged",),
             method(EventLog, "compact", _stands_for_one_less), first=8),
    Mutation("the journal is never compacted", ("the journal is bounded",),
             lambda: patch.object(Journal, "_compact", _does_nothing)),
    Mutation("compaction drops what events.jsonl does not have",
             ("nothing wedges", "each line once, in order and whole", "nothing ends a master"),
             lambda: patch.object(Publication, "told", 10**9)),
    Mutation("what the last master did not tell is never told", ("each line once, in order and whole",),
             method(journal, "last_line", _nothing_told_is_all), first=8),
    Mutation("a line is appended to a torn one", ("each line once, in order and whole",),
             lambda: patch.object(LineFile, "_cut_torn", _does_nothing), first=19),
    Mutation("a new master does not look which lines there are", ("each line once, in order and whole",),
             lambda: patch.object(line_file, "_last_line", lambda fd: {})),
    Mutation("a line that cannot be written counts as written", ("what is told is durable",),
             method(LineFile, "append", _counts_as_written)),
    Mutation("lines are published before they are written", ("what is told is durable",),
             method(Publication, "attempt", _told_before)),
    Mutation("lines are not synced", ("what is told is durable",),
             lambda: patch.object(line_file, "sync", _does_nothing)),
    Mutation("a line waits for its parts by the time of day", ("each line once, in order and whole",),
             method(LineAssembler, "add", _by_the_time_of_day), first=17),
    Mutation("a line waits while the store does not answer, too", ("each line once, in order and whole",),
             lambda: patch.object(OwnTime, "turn", lambda self, clock: clock), first=17),
    Mutation("a reader takes what is torn for a line", ("reading passes over what is torn",),
             method(jsonl, "read_metrics", _raises_at_what_is_torn), first=28),
)  # fmt: skip
