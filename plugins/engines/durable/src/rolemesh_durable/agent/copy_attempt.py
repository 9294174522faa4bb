"""Copy a rank's part of a checkpoint from its agent's shared memory to disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.attempt import CHUNK, Attempt, Removed, Writer
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.log_record import LogRecord
from rolemesh_checkpoint.memory import MemorySnapshots, SnapshotFile
from rolemesh_checkpoint.send_log import SendLog

__all__ = ["HOLDER", "CopyAttempt", "Removed"]

HOLDER = "persister"


class CopyAttempt(Attempt):
    """One attempt to write the snapshot of `step` of a rank."""

    def copy(self, shm: Path, check: Callable[[int], None]) -> bool:
        """Write all files. Return False, and leave none, if the snapshot is gone from memory. They are durable after
        `sync`.

        `check` is called before each piece, and may raise. Raises `Removed`, `OSError`, `RolemeshError`; in these
        cases, too, no file is left.
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

    def _copy(self, memory: MemorySnapshots, shm: Path, check: Callable[[int], None]) -> bool:
        image = memory.image(self._step)
        if image is None:
            return False
        who = self._role, self._rank, self._size
        sent = in_flight.after(SendLog.read(shm, self._role, self._rank, image.log, after=self._step), self._step)
        if image.path is not None:
            self.write(disk.state_file(*who), partial(_copy_image, image), check)
        if sent:
            self.write(disk.edges_file(*who), lambda writer: _write_records(writer, sent, shm), check)
        now = memory.image(self._step)
        return now is not None and now.serial == image.serial


def _write_records(writer: Writer, records: list[LogRecord], shm: Path) -> None:
    in_flight.write(writer.write, records, shm)


def _copy_image(image: SnapshotFile, writer: Writer) -> None:
    """Copy the image's file. It is read, not mapped, because its rank may truncate it meanwhile."""
    assert image.path is not None
    try:
        source = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise SnapshotError("the snapshot is gone from shared memory", where=str(image.path)) from error
    try:
        buffer = memoryview(bytearray(min(CHUNK, image.size)))
        while writer.size < image.size:
            count = os.readv(source, [buffer[: min(CHUNK, image.size - writer.size)]])
            if not count:
                return  # cut short, so it was replaced: its serial will tell
            writer.write(buffer[:count])
    finally:
        os.close(source)
