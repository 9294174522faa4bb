"""Reads a run's folder into arrays for the tables. Damaged files and lines are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.runs.jsonl import read_metrics
from rolemesh.runs.run import METRICS_FILE
from rolemesh_durable.api.history import events
from rolemesh_durable.api.jobs import LivingRun
from rolemesh_facts.row_meaning import meaning
from rolemesh_recorder.lines import Account, Head, Life, Line
from rolemesh_recorder.reading import kept_rows
from rolemesh_recorder.usage import read_usage, recorded_nodes

__all__ = [
    "LIMIT",
    "Arrays",
    "arrays",
    "event_rows",
    "gpu_loads",
    "kept",
    "measured",
    "moment",
    "node_loads",
    "read_events",
    "record",
]

Arrays = Mapping[str, np.ndarray[Any, Any]]
"""Columns of equal length, by name."""

LIMIT: Final = 1 << 53
"""Times in µs, durations and numbers at or beyond this are damage, which the tables lack."""
PAGE: Final = 10_000
"""Number of rows that go to the database at once."""
_OTHERS: Final = ("turn", "loading", "gathering", "calling", "serving", "following")


def arrays(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Arrays:
    """Return columns of objects from rows."""
    columns = [np.empty(len(rows), dtype=object) for _ in names]
    for at, row in enumerate(rows):
        for column, value in zip(columns, row, strict=True):
            column[at] = value
    return dict(zip(names, columns, strict=True))


def record(lines: Iterable[Line], first: int) -> tuple[list[Head], dict[str, Arrays]]:
    """Return the processes of a rank, and its lines as arrays by kind: lives, spans, accounts, waits,
    travels.

    In the arrays a process is its number in the record, from `first` on.
    """
    heads: list[Head] = []
    numbers: dict[tuple[int, int, str], int] = {}
    found: dict[str, list[tuple[int, ...]]] = {"lives": [], "spans": [], "accounts": [], "waits": [], "travels": []}
    process = -1
    for line in lines:
        if isinstance(line, Head):
            key = (line.generation, line.pid, line.node)
            if key not in numbers:
                numbers[key] = first + len(heads)
                heads.append(line)
            process = numbers[key]
        elif process < 0:
            continue  # the line before it, with its process, is damaged
        elif isinstance(line, Account):
            found["accounts"].append((process, line.t, line.d, *_spent(line), line.steps, line.step))
            found["travels"] += [(process, edge, *both) for edge, both in line.travelled.items()]
            found["waits"] += [
                (process, line.t, int(name[5:]), us) for name, us in line.spent.items() if _is_edge(name)
            ]
        elif isinstance(line, Life):
            found["lives"].append((process, line.t, line.d, _phase(line.what)))
        else:
            found["spans"].append((process, line.t, line.d, _phase(line.phase), line.op, line.edge, line.step))
    return heads, {kind: _numbers(_COLUMNS[kind], rows) for kind, rows in found.items()}


PHASES: list[str] = []
"""Names of phases; in arrays a phase is its place here."""
_PLACES: dict[str, int] = {}
_COLUMNS: Final = {
    "lives": ("process", "t", "d", "phase"),
    "spans": ("process", "t", "d", "phase", "op", "edge", "step"),
    "accounts": ("process", "t", "d", "computing", "waiting", "saving", "idle", "other", "steps", "step"),
    "waits": ("process", "t", "edge", "us"),
    "travels": ("process", "edge", "nbytes", "travelled"),
}


def read_events(run_dir: Path) -> Iterator[list[Event]]:
    """Yield pages of the events in the run's ``events.jsonl``."""
    for page in events(LivingRun(run_dir), 0, journal=False):
        yield [event for event in page if _is_sound(event.seq, event.epoch)]


def event_rows(page: Iterable[Event]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of the table events."""
    for event in page:
        yield event.seq, event.epoch, moment(event.time), event.kind, msgspec.json.encode(event.data).decode()


def measured(run_dir: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield pages of rows of the table metrics."""
    rows = (
        row
        for line in read_metrics(run_dir / METRICS_FILE)
        if _is_sound(line.step, line.steps)
        for row in _metrics(line)
    )
    while page := list(islice(rows, PAGE)):
        yield page


def kept(run_dir: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield pages of rows of the table rows."""
    rows = (
        (
            ref.role,
            ref.rank,
            row.step,
            row.op,
            row.row,
            msgspec.json.encode(row.columns).decode(),
            list(row.cut),
            *meaning(row.columns),
        )
        for ref, row in kept_rows(run_dir)
        if _is_sound(row.step, row.row)
    )
    while page := list(islice(rows, PAGE)):
        yield page


def node_loads(run_dir: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of the table nodes, node by node."""
    for node in recorded_nodes(run_dir):
        yield [(node, use.t, use.d / 1e6, *msgspec.structs.astuple(use)[2:8]) for use in read_usage(run_dir, node)]


def gpu_loads(run_dir: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of the table gpus, node by node."""
    for node in recorded_nodes(run_dir):
        yield [
            (node, use.t, use.d / 1e6, gpu.index, gpu.name, gpu.busy, gpu.memory, gpu.memory_total, gpu.celsius)
            for use in read_usage(run_dir, node)
            for gpu in use.gpus
        ]


def _is_sound(*numbers: int) -> bool:
    return all(-LIMIT < number < LIMIT for number in numbers)


def _metrics(line: StepMetrics) -> Iterator[tuple[Any, ...]]:
    at, steps = moment(line.time), max(1, line.steps)
    for name, value in line.values.items():
        yield line.step, steps, at, name, value, None, None
    for operator, values in line.operators.items():
        for name, value in values.items():
            yield line.step, steps, at, name, value, operator, None
    for name, value in line.staleness.items():
        yield line.step, steps, at, f"staleness: {name}", value, None, None
    for role, times in line.roles.items():
        for name in ("computing_s", "waiting_s", "blocked_s"):
            yield line.step, steps, at, name, getattr(times, name) / steps, None, role


def _spent(line: Account) -> tuple[int, int, int, int, int]:
    spent = line.spent
    waiting = sum(us for name, us in spent.items() if name == "memory" or _is_edge(name))
    other = sum(spent.get(name, 0) for name in _OTHERS)
    return spent.get("computing", 0), waiting, spent.get("saving", 0), spent.get("idle", 0), other


def _is_edge(name: str) -> bool:
    return name.startswith("edge ") and name[5:].isdecimal() and len(name) < 20


def _phase(name: str) -> int:
    if (place := _PLACES.get(name)) is None:
        place = _PLACES[name] = len(PHASES)
        PHASES.append(name)
    return place


def moment(seconds: float) -> int:
    """Return µs since 1970; 0 for a time that cannot be one."""
    return int(seconds * 1e6) if 0 <= seconds * 1e6 < LIMIT else 0


def _numbers(names: Sequence[str], rows: list[tuple[int, ...]]) -> Arrays:
    try:
        table = np.array(rows, dtype=np.int64).reshape(len(rows), len(names))
    except OverflowError:
        return _numbers(names, [row for row in rows if all(-LIMIT < value < LIMIT for value in row)])
    table = table[(np.abs(table) < LIMIT).all(axis=1)]
    return {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(names)}
