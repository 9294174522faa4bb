"""The files of one attempt to write a rank's part of a checkpoint.

Each attempt writes under names of its own (`disk.attempt_file`), and never renames. When the master completes the
checkpoint, it gives the files of the chosen attempts their final names. So an attempt that stalls for minutes and
continues after its rank, its agent or the whole job restarted cannot change a checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from rolemesh.api.workload import State
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import BlockLayout, flatten
from rolemesh_dataplane.codec import Buffer
from rolemesh_runtime import syncing

__all__ = ["CHUNK", "Attempt", "Removed", "Writer", "write_state"]

CHUNK: Final = 1 << 20
"""Bytes that are written at once."""
_RETRIES = 5


class Removed(Exception):
    """The folder of the checkpoint was removed while a part was being written to it."""


class Attempt:
    """One attempt to write the part of a rank in the checkpoint of `step`."""

    def __init__(self, run_dir: Path, role: str, rank: int, world_size: int, step: int, timeline: int) -> None:
        self._folder = disk.step_folder(run_dir, step)
        self._role, self._rank, self._size, self._step = role, rank, world_size, step
        self.attempt = f"{timeline}-{uuid.uuid4().hex[:12]}"
        """Identifies the attempt; `disk.attempt_file` puts it into the names of the files."""
        self.files: dict[str, tuple[int, str]] = {}
        """The final name of each written file → its bytes and sha256."""
        self._paths: list[Path] = []
        self._open: list[int] = []
        """Descriptors of written files that are not durable yet."""

    @property
    def size(self) -> int:
        """Return the total bytes of the files."""
        return sum(size for size, _ in self.files.values())

    def write(self, name: str, fill: Callable[[Writer], None], check: Callable[[int], None] = lambda _: None) -> None:
        """Write the file `name` with the output of `fill`. `check` is called before each piece, and may raise.

        The file is durable after `sync`. Raises `Removed`, `OSError`, and the errors of `fill` and `check`.
        """
        path = self._folder / disk.attempt_file(name, self.attempt)
        self._paths.append(path)
        self._open.append(fd := _create(path))
        fill(writer := Writer(fd, check))
        check(writer.size)
        # The disk begins at once: it is the many small files of many ranks that are made durable together.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        self.files[name] = writer.size, writer.sha.hexdigest()

    def sync(self, synced: set[Path]) -> None:
        """Make all files durable. Folders in `synced` have been synced since the last file was created; new ones are
        added.

        Raises `Removed`, `OSError`.
        """
        while self._open:
            fd = self._open.pop()
            try:
                syncing.sync(fd)
            finally:
                os.close(fd)
        try:
            for folder in (self._folder / self._role, self._folder, self._folder.parent) if self._paths else ():
                if folder not in synced:
                    syncing.sync_folder(folder)
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


class Writer:
    """A file that is being written, with the sha256 of its content so far."""

    def __init__(self, fd: int, check: Callable[[int], None]) -> None:
        self.size = 0
        self.sha = hashlib.sha256()
        self._fd, self._check = fd, check

    def write(self, data: Buffer) -> None:
        """Append `data`."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            self._check(self.size)
            piece = view[start : start + CHUNK]
            self.sha.update(piece)
            at = 0
            while at < len(piece):
                at += os.write(self._fd, piece[at:])
            self.size += len(piece)


def write_state(writer: Writer, state: State, step: int, rank: int) -> None:
    """Write the state of rank `rank` after `step`, one tensor after the other.

    Raises `TypeError`, with the path to it, for a value that a snapshot cannot hold, and `OSError`.
    """
    flat = flatten(state, rank)
    head = BlockLayout.head({"step": step, "log": disk.NO_LOG, "tree": flat.tree})
    writer.write(BlockLayout(BlockLayout.key_of(flat.blocks), flat.blocks, len(head)).header(head))
    for block in flat.blocks:
        if block.nbytes:
            writer.write(_bytes_of(block.source))


def _bytes_of(source: Any) -> Buffer:
    if isinstance(source, np.ndarray):
        return np.ascontiguousarray(source).reshape(-1).view(np.uint8).data
    import torch

    plain = source.resolve_conj().resolve_neg().cpu().contiguous()
    data: Buffer = plain.reshape(-1).view(torch.uint8).numpy().data
    return data


def _create(path: Path) -> int:
    """Create a file and its folder; other processes remove empty folders."""
    for _ in range(_RETRIES):
        with contextlib.suppress(FileNotFoundError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    raise Removed
