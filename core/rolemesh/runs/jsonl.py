"""``events.jsonl`` and ``metrics.jsonl``: how their lines read, how they are appended for good, how they are read back.

When they are written, and by whom, is not decided here: `rolemesh_durable.master.publication`.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.observer import Event, RoleTimes, StepMetrics
from rolemesh.runs.paging import open_regular, start_after

__all__ = ["LineFile", "Numbered", "event_line", "last_line", "metrics_line", "read_metrics"]

log = logging.getLogger("rolemesh.runs.jsonl")

RESERVED = ("step", "steps", "time", "operators", "roles", "staleness", "records")
TAIL = 1 << 16
NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""What some file systems over a network answer to `fsync`, for ever."""

Numbered = tuple[int, bytes]
"""A line with its number, which grows from line to line: an event's `seq`, the step of metrics."""


def event_line(event: Event) -> Numbered:
    """A line of ``events.jsonl``."""
    return event.seq, _encoded(event)


def metrics_line(line: StepMetrics) -> Numbered:
    """A line of ``metrics.jsonl``.

    It has ``step`` (from 0), ``steps``, ``time``, ``operators``, ``roles``, ``staleness`` and ``records``, and every
    value at the top level too (``"reward": 0.5``), unless its name is one of those. NaN and infinity become null.
    """
    values = {name: value for name, value in line.values.items() if name not in RESERVED}
    rest = {name: getattr(line, name) for name in RESERVED[3:]}
    head = {"step": line.step, "steps": line.steps, "time": line.time}
    try:
        return line.step, _encoded(head | values | rest)
    except Exception as error:  # what prints as nothing, or is no text; the numbers are not lost for it
        return line.step, _encoded(head | values | rest | {"records": {"error": repr(error)}})


def read_metrics(path: Path, after: int = -1) -> Iterator[StepMetrics]:
    """The lines of a ``metrics.jsonl`` whose step is above `after`; a last line that is still being written is left.

    A line that is none, because the file was damaged, is passed over; a warning in the log says which.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        at = start_after(file, "step", after)
        file.seek(at)
        for raw in file:
            at += len(raw)
            if not raw.endswith(b"\n"):
                return
            try:
                line = _unflat(msgspec.json.decode(raw, type=dict[str, Any]))
            except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
                log.warning("%s: the line that ends at byte %d is damaged, and passed over: %s", path, at, error)
                continue
            if line.step > after:
                yield line


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a JSON lines file, {} if there is none. What is no JSON is passed over."""
    try:
        with open_regular(path) as file:
            return _last_line(file.fileno())
    except FileNotFoundError:
        return {}


class LineFile:
    """A file that grows by whole lines, each of which is durable once `append` has returned, and is there once.

    `key` is the field with a line's number. A line whose number the file has reached is not written again, so that a
    master which was stopped in the middle of it and its successor may both write. Nothing is opened before the first
    `append`.
    """

    def __init__(self, path: Path, key: str, first: int) -> None:
        """Lines count from `first`."""
        self.path = path
        self.last = first - 1
        """The number of the last line that is durable, as far as this process knows."""
        self._key = key
        self._fd = -1
        self._size = 0
        self._failed: tuple[int, bytes] | None = None

    def append(self, lines: Sequence[Numbered]) -> None:
        """Write those of `lines` that the file does not have, and wait until the disk has them.

        Raises `OSError`; then none of them counts as written, whatever the file has of them is cut off, and the same
        call may be tried again, which opens the file again (a stale handle stays stale).
        """
        data = b""
        try:
            if self._fd < 0 or os.fstat(self._fd).st_size != self._size:
                self._settle()
            data = b"".join(line for number, line in lines if number > self.last)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if data:
                _sync(self._fd, os.fdatasync)
        except OSError:
            if data:
                # After a failed fsync nobody knows which pages the disk has, and the next fsync would not tell.
                self._failed = (self._size, data)
            with suppress(OSError):
                self._cut_failed()
            self.close()
            raise
        self._size += len(data)
        self.last = max([self.last, *(number for number, _ in lines)])

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def _settle(self) -> None:
        """Open the file if it is not, cut off what is torn or in doubt, and see how far it goes."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _sync_folder(self.path.parent)  # a file that is new is not in its folder after a power cut
        self._cut_failed()
        self._cut_torn()
        _sync(self._fd, os.fdatasync)  # what an earlier master has written, and maybe not waited for
        self._size = os.fstat(self._fd).st_size
        found = _last_line(self._fd).get(self._key)
        if isinstance(found, int):
            self.last = max(self.last, found)

    def _cut_failed(self) -> None:
        """Cut off what a failed `append` has left, unless somebody else has appended since."""
        if self._failed is None or self._fd < 0:
            return
        begun, data = self._failed
        size = os.fstat(self._fd).st_size
        if begun < size <= begun + len(data) and data.startswith(os.pread(self._fd, size - begun, begun)):
            os.ftruncate(self._fd, begun)
        self._failed = None

    def _cut_torn(self) -> None:
        """Cut off what a killed writer has left of its last line."""
        size = end = os.fstat(self._fd).st_size
        while end and os.pread(self._fd, 1, end - 1) != b"\n":
            chunk = min(end, TAIL)
            found = os.pread(self._fd, chunk, end - chunk).rfind(b"\n")
            end = end - chunk + found + 1
        if end != size:
            os.ftruncate(self._fd, end)


def _sync(fd: int, sync: Callable[[int], None]) -> None:
    """Wait until the disk has the file, where the file system knows of such a thing."""
    try:
        sync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def _sync_folder(path: Path) -> None:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        _sync(folder, os.fsync)
    finally:
        os.close(folder)


def _last_line(fd: int) -> dict[str, Any]:
    size, tail = os.fstat(fd).st_size, TAIL
    while True:
        data = os.pread(fd, tail, max(0, size - tail))
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        for line in reversed(lines[0 if tail >= size else 1 :]):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                return msgspec.json.decode(line, type=dict[str, Any])
        if tail >= size:
            return {}
        tail *= 4


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain) + b"\n"


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays as numbers and lists; of anything else what it prints as."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _unflat(line: dict[str, Any]) -> StepMetrics:
    values = {name: _number(value) for name, value in line.items() if name not in RESERVED}
    operators = {
        label: {name: _number(value) for name, value in metrics.items()} for label, metrics in line["operators"].items()
    }
    roles = {role: RoleTimes(**times) for role, times in line["roles"].items()}
    staleness = {label: _number(value) for label, value in line["staleness"].items()}
    return StepMetrics(
        int(line["step"]), line["steps"], line["time"], values, operators, roles, staleness, line["records"]
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
