"""The owner of a folder in a shared place: its owner file, and whether that owner is alive. Nothing is removed here."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

import msgspec

from rolemesh_processes import janitor
from rolemesh_processes.boot import boot_id
from rolemesh_processes.facts import is_stopped, start_time

__all__ = ["Owner", "is_orphan", "is_stopped_here", "owner_of", "this_process"]

ORPHAN_S = 60.0
"""Minimum seconds without maintenance before a folder is removed."""


class Owner(msgspec.Struct, frozen=True):
    """The process that a folder belongs to, and its part of the job.

    - A process is identified by `pid`, `start` (clock ticks since boot) and `boot`.
    - `since`: when this was written, in seconds since boot.
    - `tmp`: the folder of its sockets, which is removed together with this one.
    """

    job: str
    part: str
    token: str
    incarnation: int
    pid: int
    started: int
    boot: str
    since: float
    tmp: str = ""
    owner: str = janitor.OWNER

    @classmethod
    def here(cls, job: str, part: str, token: str, incarnation: int, tmp: str = "") -> Owner:
        """Return an owner record for this process."""
        pid, now = os.getpid(), time.clock_gettime(time.CLOCK_BOOTTIME)
        return cls(job, part, token, incarnation, pid, start_time(pid), boot_id(), now, tmp)

    @property
    def alive(self) -> bool:
        """Return whether the process is alive."""
        return _lives((self.boot, self.pid, self.started))

    def encode(self) -> bytes:
        """Return the content of the owner file."""
        return msgspec.json.encode(self)


def this_process() -> tuple[str, int, int]:
    """Return the boot, the pid and the start (clock ticks since boot) of this process, which no other process has."""
    return boot_id(), os.getpid(), start_time(os.getpid())


def is_stopped_here(process: tuple[str, int, int]) -> bool:
    """Return whether a signal, such as that of Ctrl-Z, has stopped a process (`this_process`) of this boot."""
    return _lives(process) and is_stopped(process[1])


def _lives(process: tuple[str, int, int]) -> bool:
    boot, pid, started = process
    return boot == boot_id() and janitor.lives(pid, started)


def owner_of(folder: Path) -> Owner | None:
    """Return the folder's owner; None unless it is a folder of this user with an owner file of ours."""
    try:
        at = folder.lstat()
        if at.st_uid != os.geteuid() or not stat.S_ISDIR(at.st_mode):
            return None
        return msgspec.convert(janitor.owner_of(str(folder)), Owner)
    except (OSError, ValueError, msgspec.ValidationError):  # JSON may have half a character, which is no text
        return None


def is_orphan(folder: Path, owner: Owner) -> bool:
    """Return whether nobody maintains the folder of `owner`, and nobody has for `ORPHAN_S` seconds.

    The janitor of a dead owner maintains the folder while it waits for the next incarnation.

    The decision uses time since boot, and whether a process is alive. It does not use the wall clock, which may be set,
    or the age of files.
    """
    if owner.alive:
        return False
    if owner.boot != boot_id():
        return True
    try:
        fd = os.open(folder / janitor.GUARD_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        # Somebody has removed it, so its janitor's lock cannot be seen. From now on it can age again. But not where the
        # whole folder is being removed: what is put into it then would stay, and be nobody's.
        with contextlib.suppress(OSError), janitor.locked(str(folder), fcntl.LOCK_EX | fcntl.LOCK_NB):
            os.close(janitor.guard(str(folder)))
        return False
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _seen(folder, owner) > ORPHAN_S


def _seen(folder: Path, owner: Owner) -> float:
    """Return when the folder was last maintained, in seconds since boot."""
    try:
        return float(janitor.read(str(folder), janitor.GUARD_FILE))
    except ValueError:
        return owner.since
