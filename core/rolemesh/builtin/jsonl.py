"""The `jsonl` observer: ``events.jsonl`` and ``metrics.jsonl`` in the run's folder, and how to read the latter back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from rolemesh.hookspecs import hookimpl
from rolemesh.observer import Event, Observer, RoleTimes, RunInfo, StepMetrics
from rolemesh.paging import start_after
from rolemesh.runs import EVENTS_FILE, METRICS_FILE

__all__ = ["JsonlObserver", "read_metrics"]

RESERVED = ("step", "steps", "time", "operators", "roles", "staleness", "records")


class JsonlObserver(Observer):
    """Writes a line per transition to ``events.jsonl`` and a line per step to ``metrics.jsonl``.

    Metrics have ``step`` (from 0), ``steps``, ``time``, ``operators``, ``roles``, ``staleness`` and ``records``,
    and every value at the top level too (``"reward": 0.5``), unless its name is one of those. NaN and infinity become
    null. Lines are appended whole, as soon as they are known.
    """

    side: ClassVar[Literal["master", "driver"]] = "master"

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._events: _Lines | None = None
        self._metrics: _Lines | None = None

    @hookimpl
    def job_started(self, run: RunInfo) -> None:
        """Open the files; what an earlier master of this job has written stays."""
        self._close()
        self._events = _Lines(Path(run.run_dir, EVENTS_FILE))
        self._metrics = _Lines(Path(run.run_dir, METRICS_FILE))

    @hookimpl
    def event(self, event: Event) -> None:
        """Append the event."""
        if self._events is not None:
            self._events.append([event])

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> None:
        """Append the lines."""
        if self._metrics is not None:
            self._metrics.append([_flat(line) for line in metrics])

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        """Close the files."""
        self._close()

    def _close(self) -> None:
        for lines in (self._events, self._metrics):
            if lines is not None:
                lines.close()
        self._events = self._metrics = None


def read_metrics(path: Path, after: int = -1) -> Iterator[StepMetrics]:
    """The lines of a ``metrics.jsonl`` whose step is above `after`; a last line that is still being written is left."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start_after(file, "step", after))
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            line = msgspec.json.decode(raw)
            if line["step"] > after:
                yield _unflat(line)


def _flat(line: StepMetrics) -> dict[str, Any]:
    values = {name: value for name, value in line.values.items() if name not in RESERVED}
    rest = {name: getattr(line, name) for name in RESERVED[3:]}
    return {"step": line.step, "steps": line.steps, "time": line.time} | values | rest


def _unflat(line: dict[str, Any]) -> StepMetrics:
    values = {name: _number(value) for name, value in line.items() if name not in RESERVED}
    operators = {
        label: {name: _number(value) for name, value in metrics.items()} for label, metrics in line["operators"].items()
    }
    roles = {role: RoleTimes(**times) for role, times in line["roles"].items()}
    staleness = {label: _number(value) for label, value in line["staleness"].items()}
    return StepMetrics(line["step"], line["steps"], line["time"], values, operators, roles, staleness, line["records"])


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


class _Lines:
    """A file that grows by whole lines; what a killed writer left of its last line is cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._drop_torn_tail()

    def append(self, values: list[Any]) -> None:
        """Write a line per value, in one call if the disk takes it."""
        data = memoryview(b"".join(msgspec.json.encode(value, enc_hook=_plain) + b"\n" for value in values))
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _drop_torn_tail(self) -> None:
        size = end = os.fstat(self._fd).st_size
        while end and os.pread(self._fd, 1, end - 1) != b"\n":
            chunk = min(end, 65536)
            found = os.pread(self._fd, chunk, end - chunk).rfind(b"\n")
            end = end - chunk + found + 1
        if end != size:
            os.ftruncate(self._fd, end)


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays as numbers and lists; of anything else what it prints as."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
