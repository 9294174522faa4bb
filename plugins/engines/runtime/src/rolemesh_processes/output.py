"""Write a process's output to a file. If the disk is full, output is lost, but neither the process nor its operator
fails."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

__all__ = ["ERRORS", "part_errors", "write_to"]

ERRORS = ".err.log"
"""End of the name of a log that has only stderr."""


def write_to(log: str | os.PathLike[str]) -> None:
    """Append this process's output to the file `log` from now on. Output that does not fit is dropped and counted."""
    try:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        fd = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)  # type: ignore[misc]


def part_errors() -> None:
    """Write this process's stderr to a log of its own from now on: beside ``worker-0.log``, to ``worker-0.err.log``."""
    log = Path(os.readlink("/proc/self/fd/2"))
    if log.suffix == ".log":
        with suppress(OSError):
            fd = os.open(log.with_suffix(ERRORS), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.dup2(fd, 2)
            os.close(fd)


def _stream(fd: int, like: TextIO) -> io.TextIOWrapper[Any]:
    # Unbuffered, as with ``python -u``: a prompt, or a bar that grows, has no newline.
    raw: Any = _Lossy(fd)
    raw.name = like.name
    stream = io.TextIOWrapper(raw, encoding=like.encoding, errors=like.errors, write_through=True)
    stream.mode = "w"  # type: ignore[misc]
    return stream


class _Lossy(io.RawIOBase):
    """A descriptor that accepts all output. When there is room again, it writes how much is missing."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lost = 0
        self._why = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._lost and self._put(f"\n[{self._lost} bytes of output are missing here: {self._why}]\n".encode()):
            self._lost = 0
        if not self._lost:
            view = view[self._put(view) :]
        self._lost += len(view)
        return memoryview(data).nbytes

    def _put(self, data: bytes | memoryview) -> int:
        """Write `data` as far as possible; return the number of written bytes."""
        at = 0
        try:
            while at < len(data):
                at += os.write(self._fd, data[at:])
        except OSError as error:
            self._why = error.strerror or str(error)
        return at
