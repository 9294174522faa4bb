"""``python -m tests.e2e.broken_store FOLDER MOUNTPOINT FAULTS``: a file system that shows FOLDER, and fails on demand.

The file FAULTS has the name of an error (``EIO``), with which every request fails meanwhile; ``SILENT``, with which no
request is answered; or nothing. Needs the package mfusepy, and FUSE of the system (Debian's fuse3).
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mfusepy  # type: ignore[import-not-found]

CHANGES = ("chmod", "create", "mkdir", "rename", "truncate", "unlink", "write")
LOOK_S = 0.05


class BrokenStore(mfusepy.Operations):  # type: ignore[misc]
    """Passes each request on to a folder, unless there is a fault."""

    use_ns = True

    def __init__(self, folder: str, faults: Path) -> None:
        self._folder, self._faults = folder, faults

    def fail(self, name: str) -> None:
        """Raise the present fault, or wait until there is none."""
        while (fault := self._faults.read_text().strip()) == "SILENT":
            time.sleep(LOOK_S)
        if fault and (fault != "EROFS" or name in CHANGES):
            raise mfusepy.FuseOSError(getattr(errno, fault))

    def _at(self, path: str) -> str:
        return self._folder + path

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        told = {name: getattr(found, name) for name in ("st_gid", "st_mode", "st_nlink", "st_size", "st_uid")}
        times = {"st_atime": found.st_atime_ns, "st_mtime": found.st_mtime_ns, "st_ctime": found.st_ctime_ns}
        return {**told, **times, "st_blocks": found.st_blocks}

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)
        return 0

    def open(self, path: str, flags: int) -> int:
        access = os.O_RDWR if flags & os.O_ACCMODE != os.O_RDONLY else os.O_RDONLY
        return os.open(self._at(path), flags & ~(os.O_ACCMODE | os.O_APPEND) | access)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def rename(self, old: str, new: str, flags: int = 0) -> int:
        os.rename(self._at(old), self._at(new))
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")}

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        os.utime(self._at(path), ns=times) if times else os.utime(self._at(path))
        return 0

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)


def unless_broken(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation that fails as the store does."""

    @functools.wraps(operation)
    def answer(store: BrokenStore, *arguments: Any, **named: Any) -> Any:
        store.fail(name)
        return operation(store, *arguments, **named)

    return answer


for each, made in list(vars(BrokenStore).items()):
    if callable(made) and each not in ("__init__", "_at", "fail", "release"):
        setattr(BrokenStore, each, unless_broken(each, made))

if __name__ == "__main__":
    shown, mountpoint, faults = sys.argv[1:]
    mfusepy.FUSE(BrokenStore(shown, Path(faults)), mountpoint, foreground=True)
