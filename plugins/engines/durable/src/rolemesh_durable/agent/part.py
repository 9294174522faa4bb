"""A rank's part of a persisted checkpoint: the files of one attempt to write it, from shared memory to disk.

Each attempt writes under names of its own (`disk.attempt_file`), and never renames: the master gives the files of the
attempts that it chose their final names when it completes the checkpoint. So an attempt that stands still for minutes,
and goes on after its rank, its agent or the whole job was restarted, cannot change a checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from rolemesh_durable.checkpoint import disk, in_flight
from rolemesh_durable.checkpoint.layout import SnapshotError
from rolemesh_durable.checkpoint.memory import Image, MemorySnapshots
from rolemesh_durable.checkpoint.send_log import LogRecord, SendLog
from rolemesh_durable.dataplane.codec import Buffer

__all__ = ["HOLDER", "Part", "Removed"]

HOLDER = "persister"
_CHUNK = 1 << 20
_RETRIES = 5


class Removed(Exception):
    """The folder of the checkpoint was removed while a part was being written to it."""


class Part:
    """One attempt to write the snapshot of `step`. `check` is called before each piece, and may raise."""

    def __init__(self, run_dir: Path, role: str, rank: int, world_size: int, step: int, timeline: int) -> None:
        self._folder = disk.step_folder(run_dir, step)
        self._role, self._rank, self._size, self._step = role, rank, world_size, step
        self.attempt = f"{timeline}-{uuid.uuid4().hex[:12]}"
        """Says whose the files are; `disk.attempt_file` has it in their names."""
        self.files: dict[str, tuple[int, str]] = {}
        """The final name of each file that is written: its bytes and sha256."""
        self._paths: list[Path] = []
        self._open: list[int] = []
        """Descriptors of files that are written, and not durable yet."""

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(size for size, _ in self.files.values())

    def write(self, shm: Path, check: Callable[[int], None]) -> bool:
        """Write all files; False, and none is left, if the snapshot is gone from memory. They are durable after `sync`.

        Raises `Removed`, `OSError`, `RolemeshError`; then, too, no file is left.
        """
        memory = MemorySnapshots(shm, self._role, self._rank)
        try:
            if not memory.hold(self._step, HOLDER):
                return False
            try:
                whole = self._copy(memory, shm, check)
            finally:
                memory.release(self._step, HOLDER)
        except BaseException:
            self.remove()
            raise
        finally:
            memory.close()
        if not whole:
            self.remove()
        return whole

    def sync(self, synced: set[Path]) -> None:
        """Make all files durable. Folders in `synced` are so since the last file was made; this adds what it syncs.

        Raises `Removed`, `OSError`.
        """
        while self._open:
            fd = self._open.pop()
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        try:
            for folder in (self._folder / self._role, self._folder, self._folder.parent) if self._paths else ():
                if folder not in synced:
                    disk.sync_folder(folder)
                    synced.add(folder)
        except FileNotFoundError as error:
            raise Removed from error
        if not all(path.exists() for path in self._paths):
            raise Removed

    def remove(self) -> None:
        """Remove the files that still have the attempt's names."""
        while self._open:
            os.close(self._open.pop())
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for each in (self._folder / self._role, self._folder):
            with contextlib.suppress(OSError):
                each.rmdir()  # if it is empty
        self.files = {}

    def _copy(self, memory: MemorySnapshots, shm: Path, check: Callable[[int], None]) -> bool:
        image = memory.image(self._step)
        if image is None:
            return False
        who = self._role, self._rank, self._size
        sent = in_flight.after(SendLog.read(shm, self._role, self._rank, image.log, after=self._step), self._step)
        if image.path is not None:
            self._one(disk.state_file(*who), lambda writer: writer.copy(image), check)
        if sent:
            self._one(disk.edges_file(*who), lambda writer: _write_records(writer, sent, shm), check)
        now = memory.image(self._step)
        return now is not None and now.serial == image.serial

    def _one(self, name: str, fill: Callable[[_Writer], None], check: Callable[[int], None]) -> None:
        path = self._folder / disk.attempt_file(name, self.attempt)
        self._paths.append(path)
        self._open.append(fd := _create(path))
        fill(writer := _Writer(fd, check))
        check(writer.size)
        # The disk begins at once: it is the many small files of many ranks that are made durable together.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.files[name] = writer.size, writer.sha.hexdigest()


def _create(path: Path) -> int:
    """Create a file, and its folder; others remove folders that are empty."""
    for _ in range(_RETRIES):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    raise Removed


def _write_records(writer: _Writer, records: list[LogRecord], shm: Path) -> None:
    in_flight.write(writer.write, records, shm)


class _Writer:
    """A file that is being written, with the sha256 of what it has."""

    def __init__(self, fd: int, check: Callable[[int], None]) -> None:
        self.size = 0
        self.sha = hashlib.sha256()
        self._fd, self._check = fd, check

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            self._check(self.size)
            piece = view[start : start + _CHUNK]
            self.sha.update(piece)
            at = 0
            while at < len(piece):
                at += os.write(self._fd, piece[at:])
            self.size += len(piece)

    def copy(self, image: Image) -> None:
        """Copy the image's file. It is read, not mapped: its rank may cut it while we are at it."""
        assert image.path is not None
        try:
            source = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise SnapshotError("the snapshot is gone from shared memory", where=str(image.path)) from error
        try:
            buffer = memoryview(bytearray(min(_CHUNK, image.size)))
            while self.size < image.size:
                count = os.readv(source, [buffer[: min(_CHUNK, image.size - self.size)]])
                if not count:
                    return  # cut short, so it was replaced: its serial will tell
                self.write(buffer[:count])
        finally:
            os.close(source)
