"""Removes the content of a folder that hostile commands have filled, or gives it to another user."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

__all__ = ["empty", "forget", "give", "remove"]

_SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")
"""The folders in which every user may make files."""
_FORGET_S: Final = 10


def empty(folder: str) -> None:
    """Remove all in `folder`, which must not change meanwhile. Trees may be deeper than a path can be long, and folders
    without permissions. Symbolic links are removed, not followed.
    """
    pending, number = [folder], 0
    while pending:
        here = pending.pop()
        os.chmod(here, 0o700)
        nested = []
        with os.scandir(here) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    nested.append(entry.path)
                else:
                    os.unlink(entry.path)
        for each in nested:  # up to the top, so that no path becomes long
            number += 1
            flat = os.path.join(folder, f".rolemesh-{os.getpid()}-{number}")
            with suppress(PermissionError):
                os.chmod(each, 0o700)
            os.rename(each, flat)
            pending.append(flat)
        if here != folder:
            os.rmdir(here)


def remove(folder: str) -> None:
    """Remove `folder` with all in it. See `empty`."""
    empty(folder)
    os.rmdir(folder)


def give(folder: str, user: int) -> None:
    """Make `user` the owner of a folder and its content, as far as it belongs to this process's user.

    A file with several names stays as it is, because another name may be outside of the folder.
    """
    pending = [folder]
    while pending:
        here = pending.pop()
        with suppress(OSError), os.scandir(here) as found:  # a path may be too long
            if os.lstat(here).st_uid == os.getuid():
                os.lchown(here, user, user)
            for entry in found:
                about = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif about.st_uid == os.getuid() and about.st_nlink == 1:
                    os.lchown(entry.path, user, user)


def forget(user: int, places: Sequence[str] = _SHARED) -> None:
    """Remove the files of a user who exists only for one sandbox, for at most `_FORGET_S` seconds. A process of this
    user does it: other users may change folders meanwhile.
    """
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        signal.alarm(_FORGET_S)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        for place in places:
            with suppress(OSError), os.scandir(place) as found:
                for entry in [each for each in found if each.stat(follow_symlinks=False).st_uid == user]:
                    _remove(entry)
    finally:
        os._exit(0)


def _remove(entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            return
        remove(entry.path)
