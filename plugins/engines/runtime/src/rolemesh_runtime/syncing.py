"""Waiting until files and names are on disk, so that a power cut takes neither back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["sync", "sync_folder"]

_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""Errors with which some network file systems always answer `fsync`."""


def sync(fd: int) -> None:
    """Wait until the file is on disk, if the file system supports that."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on disk, if this user may read it."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        sync(fd)
    finally:
        os.close(fd)
