"""Folders as tar archives: the same content, the same bytes; and no way out of the folder for what is in them."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rolemesh_agents import AgentError
from rolemesh_sandbox_process.guard.emptying import empty

__all__ = ["pack", "unpack"]

TIME = 946_684_800
"""The first time of change, in seconds: the beginning of the year 2000. Zip archives cannot have zero."""
_BLOCK = 4096
_KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK, stat.S_ISFIFO)


def pack(folder: Path, limit_mb: float, begun: Sequence[int] = ()) -> bytes | None:
    """Return the content of `folder`, in the order of names. It has files (holes and blocks of zeros need no space),
    folders, symbolic links as they are, hard links between files of the folder, and named pipes. It leaves out sockets
    and devices. Owners are fixed, and setuid bits removed.

    `begun` has the times in ns at which commands began. All files that one command has changed get one time, later than
    those of earlier commands. So ``make`` builds the same as before, and the clock does not change the archive.

    Return None if the archive would have more than twice `limit_mb` times 10^6 bytes, or a path is longer than the
    system takes.
    """
    try:
        return _packed(folder, limit_mb, begun)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise


def _packed(folder: Path, limit_mb: float, begun: Sequence[int]) -> bytes | None:
    out, first = io.BytesIO(), dict[tuple[int, int], str]()
    limit = int(limit_mb * 1e6)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        found = list(_entries(str(folder)))
        times = _Times([about.st_mtime_ns for _, _, about in found], begun)
        for name, path, about in found:
            if out.tell() + about.st_blocks * 512 > 2 * limit:
                return None
            info = _info(name, path, about, times.of(about.st_mtime_ns))
            key = (about.st_dev, about.st_ino)
            if stat.S_ISREG(about.st_mode) and about.st_nlink > 1 and key in first:
                info.type, info.linkname = tarfile.LNKTYPE, first[key]
                tar.addfile(info)
            elif stat.S_ISREG(about.st_mode):
                first[key] = name
                with _readable(path, about), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                    _add_file(tar, info, file.fileno(), about.st_size)
            else:
                tar.addfile(info)
    return out.getvalue()


def unpack(state: bytes, folder: Path) -> None:
    """Make `folder` what it was at `pack`. Symbolic links come last, so no file is written through one."""
    empty(str(folder))
    with tarfile.open(fileobj=io.BytesIO(state), encoding="utf-8") as tar:
        members = tar.getmembers()
        for info in members:
            if os.path.isabs(info.name) or ".." in Path(info.name).parts:
                raise AgentError(f"the snapshot has a file outside of the folder: {info.name!r}")
        for info in sorted(members, key=lambda each: (each.issym(), each.islnk())):
            _extract(tar, info, folder)
        for info in reversed(members):
            path = folder / info.name
            if not info.issym():
                os.chmod(path, info.mode)
            os.utime(path, (info.mtime, info.mtime), follow_symlinks=False)
    os.utime(folder, (TIME, TIME))


class _Times:
    """The times of change in an archive: the order of what commands have changed."""

    def __init__(self, found: Sequence[int], begun: Sequence[int]) -> None:
        self._begun = begun
        self._ranks = {time: rank for rank, time in enumerate(sorted({self._began(each) for each in found}))}

    def of(self, time: int) -> int:
        """Return the seconds for a time of change in ns."""
        return TIME + self._ranks[self._began(time)]

    def _began(self, time: int) -> int:
        position = bisect(self._begun, time)
        return self._begun[position - 1] if position else time


def _entries(folder: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield the name, the path and the state of all that is in an archive; parents first, in the order of names."""
    pending = [("", folder)]
    while pending:
        name, path = pending.pop()
        about = os.lstat(path)
        if name and any(is_kind(about.st_mode) for is_kind in _KINDS):
            yield name, path, about
        if stat.S_ISDIR(about.st_mode):
            with _readable(path, about):
                found = sorted(os.listdir(path), reverse=True)
            pending += [(f"{name}/{each}" if name else each, f"{path}/{each}") for each in found]


def _info(name: str, path: str, about: os.stat_result, time: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = about.st_mode & 0o777, time
    if stat.S_ISDIR(about.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(about.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
    elif stat.S_ISFIFO(about.st_mode):
        info.type = tarfile.FIFOTYPE
    return info


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, file: int, size: int) -> None:
    """Add a file without its blocks of zeros, in GNU's sparse format 1.0 if it has any."""
    pieces = list(_pieces(file, size))
    if pieces == [(0, size)] or not size:
        info.size = size
        tar.addfile(info, io.BytesIO(os.pread(file, size, 0)))
        return
    table = "".join(f"{each}\n" for each in (len(pieces), *(number for piece in pieces for number in piece)))
    head = table.encode().ljust(-(-len(table) // 512) * 512, b"\0")
    data = b"".join(os.pread(file, length, start) for start, length in pieces)
    told = {"major": "1", "minor": "0", "name": info.name, "realsize": str(size)}
    info.pax_headers = {f"GNU.sparse.{key}": value for key, value in told.items()}
    info.size = len(head) + len(data)
    tar.addfile(info, io.BytesIO(head + data))


def _pieces(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the parts that are not blocks of zeros, whether the disk stores such blocks or not."""
    position, begun, nothing = 0, -1, bytes(_BLOCK)
    while position < size:
        try:
            data = os.lseek(file, position, os.SEEK_DATA) // _BLOCK * _BLOCK
        except OSError:  # a hole up to the end
            data = size
        if data > position:
            if begun >= 0:
                yield begun, position - begun
            begun, position = -1, data
            continue
        block = os.pread(file, min(_BLOCK, size - position), position)
        empty_block = block == nothing[: len(block)]
        if empty_block and begun >= 0:
            yield begun, position - begun
            begun = -1
        elif not empty_block and begun < 0:
            begun = position
        position += len(block)
    if begun >= 0:
        yield begun, size - begun


@contextmanager
def _readable(path: str, about: os.stat_result) -> Iterator[None]:
    """Let the owner read a file or folder that forbids it."""
    denied = not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(about.st_mode) else 0))
    if denied:
        os.chmod(path, 0o700)
    try:
        yield
    finally:
        if denied:
            os.chmod(path, stat.S_IMODE(about.st_mode))


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path) -> None:
    path = folder / info.name
    if info.isdir():
        path.mkdir(mode=0o700)
    elif info.issym():
        path.symlink_to(info.linkname)
    elif info.islnk():
        os.link(folder / info.linkname, path, follow_symlinks=False)
    elif info.isfifo():
        os.mkfifo(path)
    elif info.isreg():
        tar.makefile(info, path)
    else:
        raise AgentError(f"the snapshot has something that is no file: {info.name!r}")
