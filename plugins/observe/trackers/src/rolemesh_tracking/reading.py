"""Read what a tracker has not sent so far from the files of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import merge
from pathlib import Path

import msgspec

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.runs.jsonl import UNDECODABLE, open_regular, read_metrics
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_tracking.cursor import Cursor
from rolemesh_tracking.lines import Line, Note, flat, note

__all__ = ["newest", "told", "unsent"]

NEWEST_BYTES = 4_000_000
"""Bytes at the end of the metrics that have the newest value of each one, unless it comes very rarely."""


def unsent(run_dir: Path, cursor: Cursor, patterns: Sequence[str]) -> Iterator[Line | Note]:
    """Yield the lines of metrics and the notes after the cursor, by time. Missing files count as empty."""
    step = cursor.step
    lines: Iterator[StepMetrics | Event] = read_metrics(run_dir / METRICS_FILE, cursor.step)
    for each in merge(lines, _events(run_dir, cursor.event), key=lambda each: each.time):
        if isinstance(each, StepMetrics):
            step = max(step, each.step)
            yield flat(each, patterns)
        elif (found := note(each, step)) is not None:
            yield found


def told(run_dir: Path, upto: int) -> Iterator[Note]:
    """Yield the notes up to the event of this number again, each after step -1."""
    for event in _events(run_dir, 0):
        if event.seq <= upto and (found := note(event, -1)) is not None:
            yield found


def newest(run_dir: Path, upto: int, patterns: Sequence[str]) -> Line | None:
    """Return the newest value of each metric up to a step, under the number of the last line; None if there is none."""
    path, values, last = run_dir / METRICS_FILE, dict[str, float](), None
    with suppress(FileNotFoundError):
        with open_regular(path) as file:
            begin = max(0, file.seek(0, os.SEEK_END) - NEWEST_BYTES)
            file.seek(begin)
            begin += len(file.readline()) if begin else 0
        for each in read_metrics(path, start=begin):
            if each.step <= upto:
                last = flat(each, patterns)
                values |= last.values
    return None if last is None else last._replace(values=values)


def _events(run_dir: Path, after: int) -> Iterator[Event]:
    with suppress(FileNotFoundError), open_regular(run_dir / EVENTS_FILE) as file:
        for raw in file:
            with suppress(*UNDECODABLE):
                event = msgspec.json.decode(raw, type=Event)
                if event.seq > after and raw.endswith(b"\n"):
                    yield event
