"""Format and read the lines of ``events.jsonl`` and ``metrics.jsonl``.

The callers decide when a line is written.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.observer import Event, StepMetrics

log = logging.getLogger("rolemesh.runs.jsonl")

RESERVED = ("step", "steps", "time", "values", "operators", "roles", "staleness", "records")

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of `msgspec` for damaged bytes: no JSON or another type, no UTF-8, brackets too deep."""

Numbered = tuple[int, bytes]
"""A line with its number, which grows from line to line: the `seq` of an event, the step of
metrics."""


def event_line(event: Event) -> Numbered:
    """Return a line of ``events.jsonl``."""
    return event.seq, _encoded(event)


def metrics_line(line: StepMetrics) -> Numbered:
    """Return a line of ``metrics.jsonl``.

    It has ``step`` (from 0), ``steps``, ``time``, ``operators``, ``roles``, ``staleness`` and
    ``records``. Every value stands at the top level (``"reward": 0.5``). If it has the name of
    one of these keys, it is in ``values`` (``"values": {"time": 0.5}``). NaN and infinity become
    null.
    """
    try:  # of quick steps there are many lines, most of them without values
        data = _encoded(_flat(line) if line.values else line)
        return line.step, data if line.values else data.replace(b'"values":{},', b"", 1)
    except Exception as error:
        # What prints as nothing, or is no text. The numbers are not lost for it.
        return line.step, _encoded(_flat(line) | {"records": {"error": repr(error)}})


def _flat(line: StepMetrics) -> dict[str, Any]:
    plain = {name: value for name, value in line.values.items() if name not in RESERVED}
    taken = {name: line.values[name] for name in RESERVED if name in line.values}
    first = {name: getattr(line, name) for name in RESERVED[:3]}
    rest = {name: getattr(line, name) for name in RESERVED[4:]}
    return first | plain | ({"values": taken} if taken else {}) | rest


def read_metrics(path: Path, after: int = -1, start: int = 0) -> Iterator[StepMetrics]:
    """Yield the lines of a ``metrics.jsonl`` whose step is above `after`; an incomplete last line
    is left out.

    A damaged line is skipped, with a warning in the log. `start` is the byte to begin at, for
    callers that know the lines before it are not needed.
    """
    with suppress(FileNotFoundError), open_regular(path) as file:
        file.seek(start)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            try:
                line = _line(raw)
            except Exception as error:  # a line may have anything
                what = f"the line that ends at byte {file.tell()} is damaged, and passed over"
                log.warning("%s: %s: %s", path, what, str(error)[:200])
                continue
            if line.step > after:
                yield line


def links(folder: str | int) -> int:
    """Return the flag with which a file in `folder` is opened. It refuses links, unless the folder
    is this user's and others may not write there."""
    at = os.stat(folder)
    return 0 if at.st_uid == os.geteuid() and not at.st_mode & stat.S_IWOTH else os.O_NOFOLLOW


def open_regular(path: str | Path, folder: int | None = None) -> BufferedReader:
    """Open a file of a run for reading: a path, or a name in the folder of a descriptor.

    Raises `OSError`, also for a link of others, which could lead out of the run (see `links`), and
    for a pipe or a device, which could block.
    """
    flags = links(os.path.dirname(path) or "." if folder is None else folder)
    fd = os.open(path, flags | os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(fd, "rb")


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_plain) + b"\n"


def _plain(value: Any) -> Any:
    """Return numpy scalars and arrays as numbers and lists, and other objects as the text that they
    print."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


class _Bare(StepMetrics, forbid_unknown_fields=True):
    """A line without values at the top level, as most lines of fast steps are."""


def _line(raw: bytes) -> StepMetrics:
    with suppress(msgspec.ValidationError):
        return StepMetrics(*msgspec.structs.astuple(msgspec.json.decode(raw, type=_Bare)))
    line = msgspec.json.decode(raw, type=dict[str, Any])
    plain = {name: value for name, value in line.items() if name not in RESERVED}
    line["values"] = _numbers(plain | line.get("values", {}))
    line["operators"] = {label: _numbers(each) for label, each in line["operators"].items()}
    line["staleness"] = _numbers(line["staleness"])
    return msgspec.convert(line, StepMetrics)


def _numbers(values: dict[str, float | None]) -> dict[str, float]:
    return {name: float("nan") if value is None else float(value) for name, value in values.items()}
