"""Files of a run that cannot be read: the error, with a remedy, and the wait until they can be read again."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rolemesh.errors import RolemeshError
from rolemesh_runtime.run_files import LINK

__all__ = ["BROKEN", "DAMAGED", "UnreadableError", "unreadable", "when_readable"]

BROKEN = "look whether its file system is mounted and its server answers, and then try again"
DAMAGED = "remove the run's folder if it is of no use"
REMEDIES = {
    **dict.fromkeys((0, errno.EINVAL, errno.EFBIG), "remove it, or copy the run without it"),
    errno.ELOOP: "remove it, or put the file itself in its place",
    errno.EACCES: "look at its permissions",
    errno.EPERM: "look at its permissions",
    errno.ENAMETOOLONG: "give a shorter name",
}
"""Remedies by error number, for errors that are not the file system's."""
PAUSE_S = 1.0
"""Seconds between two attempts to read a file."""

T = TypeVar("T")
log = logging.getLogger("rolemesh_runtime.unreadable")


class UnreadableError(RolemeshError):
    """A file or a folder of a run cannot be read now."""


def unreadable(path: Path, error: OSError) -> UnreadableError:
    """Return the error of a file of a run that cannot be read, with a remedy."""
    what = f"the file cannot be read: {LINK if error.errno == errno.ELOOP else error.strerror or error}"
    return UnreadableError(what, where=str(path), remedy=REMEDIES.get(error.errno or 0, BROKEN))


def when_readable(look: Callable[[], T]) -> T:
    """Return what `look` returns. While it raises `UnreadableError`, look again: broken file systems come back."""
    warned = False
    while True:
        try:
            return look()
        except UnreadableError as error:
            if not warned:
                log.warning("%s; it is tried again until it can", error)
            warned = True
        time.sleep(PAUSE_S)
