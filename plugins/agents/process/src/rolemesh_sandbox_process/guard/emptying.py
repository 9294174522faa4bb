"""Removes the content of a folder that hostile commands have filled, or gives it to another user."""

from __future__ import annotations

import os
from contextlib import suppress

__all__ = ["empty", "give"]


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
