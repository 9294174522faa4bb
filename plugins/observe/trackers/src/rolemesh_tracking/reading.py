"""Read what a tracker has not sent so far from the files of the run."""

from __future__ import annotations

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

__all__ = ["unsent"]


def unsent(run_dir: Path, cursor: Cursor, patterns: Sequence[str]) -> Iterator[Line | Note]:
    """Yield the lines of metrics and the notes after the cursor, by time. Missing files count as empty."""
    step = cursor.step
    lines: Iterator[StepMetrics | Event] = read_metrics(run_dir / METRICS_FILE, cursor.step)
    for each in merge(lines, _events(run_dir, cursor.event), key=lambda each: each.time):
        if isinstance(each, StepMetrics):
            step = max(step, each.step)
            yield flat(each, patterns)
        elif (told := note(each, step)) is not None:
            yield told


def _events(run_dir: Path, after: int) -> Iterator[Event]:
    with suppress(FileNotFoundError), open_regular(run_dir / EVENTS_FILE) as file:
        for raw in file:
            with suppress(*UNDECODABLE):
                event = msgspec.json.decode(raw, type=Event)
                if event.seq > after and raw.endswith(b"\n"):
                    yield event
