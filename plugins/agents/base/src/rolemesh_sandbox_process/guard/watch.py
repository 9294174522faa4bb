"""Measurements of a running command: its processes, their memory, and the size of its folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress

__all__ = ["children", "descendants", "folder_size", "resident", "unnamed"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 4096
"""Bytes that the size of a folder has at least per file, so that empty files cannot exhaust a disk."""
_LONGEST = 3500
"""Length of a path at which a folder counts as too large. Linux refuses longer ones from 4096 on."""


def children(pid: int) -> list[int]:
    """Return the processes whose parent is `pid`. A process that ends meanwhile has none."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        return found if _LISTED or not os.path.exists(f"/proc/{pid}") else _by_parent(pid)
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, parents before children."""
    found = children(pid)
    for each in found:  # grows while it is read
        found += children(each)
    return found


def resident(pid: int) -> int:
    """Return the bytes of memory that a process holds, shared ones too; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def folder_size(path: str, enough: int) -> int:
    """Return the bytes on disk of the files below `path`. It stops counting above `enough`.

    It follows no symbolic links, and makes folders readable that are not.
    """
    size, pending = 0, [path]
    while pending and size <= enough:
        folder = pending.pop()
        if len(folder) > _LONGEST:
            return enough + 1
        for entry in _entries(folder):
            try:
                about = entry.stat(follow_symlinks=False)
                nested = entry.is_dir(follow_symlinks=False)
            except OSError:  # removed meanwhile
                continue
            size += max(about.st_blocks * 512, _ENTRY)
            if nested:
                pending.append(entry.path)
    return size


def unnamed(pids: Iterable[int], paths: Iterable[str]) -> tuple[int, int]:
    """Return the bytes of files without a name: on the file systems of `paths`, and of open ones elsewhere (in memory).

    Each file counts once. A file on disk that is mapped and closed counts with the size of its mapping.
    """
    devices, pids = {os.stat(path).st_dev for path in paths}, list(pids)
    found = {key: size for pid in pids for key, size in _mapped(pid) if key[0] in devices}
    found |= {key: size for pid in pids for key, size in _opened(pid)}
    disk = sum(size for (device, _), size in found.items() if device in devices)
    return disk, sum(found.values()) - disk


def _opened(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Device, inode and bytes of each open file of a process that has no name."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                about = os.stat(f"/proc/{pid}/fd/{name}")
                if not about.st_nlink and stat.S_ISREG(about.st_mode):
                    yield (about.st_dev, about.st_ino), about.st_blocks * 512


def _mapped(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Device, inode and size of each mapping of a file that has no name."""
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.endswith(" (deleted)\n"):
                range_, _, _, device, inode, _ = line.split(maxsplit=5)
                (first, last), (major, minor) = (
                    (int(each, 16) for each in pair.split(mark)) for pair, mark in ((range_, "-"), (device, ":"))
                )
                yield (os.makedev(major, minor), int(inode)), last - first


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    for attempt in (0, 1):
        try:
            with os.scandir(folder) as found:
                yield from found
            return
        except PermissionError:
            if attempt:
                return
            try:
                os.chmod(folder, 0o700, follow_symlinks=False)
            except (OSError, NotImplementedError):
                return
        except OSError:
            return


def _by_parent(parent: int) -> list[int]:
    """Return the children of a process by reading all processes, for kernels that do not list them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(name))
        except (OSError, IndexError):
            continue
    return found


_LISTED = os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
