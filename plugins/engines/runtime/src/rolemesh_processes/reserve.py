"""Pages of shared memory that an agent reserves, so that it can create its small files even if ranks have filled the
memory.

Spare pages are files with allocated memory. If there is no room for a new file, a spare page is renamed to it, so no
other process can take the memory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path

__all__ = ["Reserve"]

PAGES = 64
PREFIX = ".spare-"
AGAIN_S = 1.0
"""Seconds between attempts to refill the reserve."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class Reserve:
    """The spare pages in `folder`, including those of an earlier incarnation. `fill` creates missing ones."""

    def __init__(self, folder: Path, pages: int = PAGES) -> None:
        self._folder, self._pages = folder, pages
        self._spare = list(folder.glob(f"{PREFIX}*"))
        self._number = max((int(path.name.removeprefix(PREFIX)) for path in self._spare), default=0)
        self._tried = float("-inf")

    @property
    def warning(self) -> str:
        """Return the problem; "" if no page is missing."""
        return self.full if len(self._spare) < self._pages else ""

    @property
    def full(self) -> str:
        """Return the problem that ranks and this reserve have with full shared memory, always in the same words."""
        return f"shared memory is full ({self._folder}): give /dev/shm more room (docker --shm-size)"

    def fill(self) -> None:
        """Create the missing spare pages, as far as there is room."""
        now = time.monotonic()
        if len(self._spare) >= self._pages or now < self._tried + AGAIN_S:
            return
        self._tried = now
        with contextlib.suppress(OSError):
            while len(self._spare) < self._pages:
                self._spare.append(self._allocate(mmap.PAGESIZE))

    def forget(self) -> None:
        """The folder was emptied, and the reserve with it."""
        self._spare.clear()
        self._tried = float("-inf")

    def make(self, path: Path, data: bytes) -> None:
        """Create a new file with `data` at `path`, completely or not at all. All of it is allocated, so it can be
        mapped.

        Processes that have mapped an older file of that name keep seeing that one. Raises `OSError` if there is neither
        room nor a spare page.
        """
        new = self._blank(len(data))
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.pwrite(fd, data, 0)
                os.ftruncate(fd, len(data))
            finally:
                os.close(fd)
            os.replace(new, path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _blank(self, size: int) -> Path:
        try:
            return self._allocate(size)
        except OSError as error:
            if error.errno not in NO_ROOM or size > mmap.PAGESIZE:
                raise
            while self._spare:
                path = self._spare.pop()
                if path.exists():
                    return path
            raise

    def _allocate(self, size: int) -> Path:
        self._number += 1
        path = self._folder / f"{PREFIX}{self._number}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, max(1, size))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return path
