"""The history of a run, page by page: from its files and, for the newest events, from its journal.

Watchers read the history here; the master only answers from its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path

import msgspec

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.runs.jsonl import UNDECODABLE, open_regular, read_metrics
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_durable.control.client import BEYOND
from rolemesh_durable.control.living import LivingRun
from rolemesh_durable.journal.line_file import last_line
from rolemesh_durable.journal.paging import PAGE, pages, start_after
from rolemesh_runtime.unreadable import unreadable

__all__ = ["events", "lines", "newest_event", "newest_step"]

PAGE_LINES = 2048
"""Number of lines of metrics per page. An observer's queue has room for twice as many (`Background`)."""

_decode = msgspec.json.Decoder(Event).decode


def newest_event(run: LivingRun) -> int:
    """Return the number of the last event in ``events.jsonl``; 0 if there is none. Raises `RolemeshError`."""
    return _last(run.path / EVENTS_FILE, "seq", 0)


def newest_step(run: LivingRun) -> int:
    """Return the step of the last line of ``metrics.jsonl``; -1 if there is none. Raises `RolemeshError`."""
    return _last(run.path / METRICS_FILE, "step", -1)


def _last(path: Path, key: str, none: int) -> int:
    try:
        found = last_line(path).get(key)
    except OSError as error:
        raise unreadable(path, error) from error
    return found if isinstance(found, int) else none


def events(run: LivingRun, after: int, until: int = BEYOND, *, journal: bool = True) -> Iterator[list[Event]]:
    """Yield pages of the events with numbers above `after`, up to `until`, in order.

    ``events.jsonl`` has all events except those that are being written. The rest is in the journal, which may lack old
    events; without `journal` it is not read. Raises `StateError` if it cannot be read.
    """
    at = after
    for page in pages(run.path / EVENTS_FILE, "seq", at):
        found = [event for event in map(_event, page) if event is not None and at < event.seq <= until]
        if found:
            at = found[-1].seq
            yield found
        if at >= until or len(found) < len(page):
            break
    if at >= until or not journal:
        return
    with run.store() as store:
        while rows := store.events(at, limit=PAGE):
            found = [event for event in rows if event.seq <= until]
            if found:
                yield found
            at = rows[-1].seq
            if at >= until:
                return


def lines(run: LivingRun, after: int, until: int = BEYOND) -> Iterator[list[StepMetrics]]:
    """Yield pages of the lines of metrics of steps above `after`, below `until`, in order."""
    path = run.path / METRICS_FILE
    try:
        with open_regular(path) as file:
            start = start_after(file, "step", after)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(path, error) from error
    found = takewhile(lambda line: line.step < until, read_metrics(path, after, start))
    while page := list(islice(found, PAGE_LINES)):
        yield page


def _event(line: bytes) -> Event | None:
    try:
        return _decode(line)
    except (*UNDECODABLE, ValueError):
        return None
