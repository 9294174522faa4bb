"""The pull of an image from another agent: ask for its parts, then for their pieces, a few at a time."""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.replicas.frames import IMAGE, PIECE
from rolemesh_durable.extensions.replicas.store import Image, ReplicaStore, Stamp

__all__ = ["Pull"]

_PIECE = 1 << 20
_AT_ONCE = 8


class Pull:
    """One image on its way here.

    `stamp` is None if any image of the step will do; `install`: a rank will start from it.

    Any method may raise `OSError` or `msgspec.MsgspecError`: then the pull has failed.
    """

    def __init__(
        self,
        store: ReplicaStore,
        send: Callable[[bytes, Any], None],
        address: str,
        ref: RankRef,
        step: int,
        stamp: Stamp | None,
        *,
        install: bool,
        now: float,
    ) -> None:
        self.address, self.ref, self.step, self.install = address, ref, step, install
        self.stamp = stamp
        self.said = self.heard = now
        self._store, self._send = store, send
        self._image: Image | None = None
        self._folder: Path | None = None
        self._waiting: deque[tuple[str, int, int]] = deque()
        self._asked: set[tuple[str, int, int]] = set()

    @property
    def complete(self) -> bool:
        """True if every piece has come."""
        return self._image is not None and not self._waiting and not self._asked

    def repeat(self, now: float) -> None:
        """Ask (again) for everything that has not come."""
        self.said = now
        if self._image is None:
            self._send(IMAGE, (*self.ref, self.step, self.stamp))
        for piece in self._asked:
            self._send(PIECE, (*self.ref, self.step, self.stamp, *piece))

    def hear(self, kind: bytes, body: bytes, data: bytes, now: float) -> str:
        """Take an answer to `body`. Return what is wrong with it; "" if nothing is."""
        self.said = self.heard = now
        if kind == IMAGE and self._image is None:
            image = msgspec.msgpack.decode(data, type=Image | None)
            if image is None:
                return f"the agent at {self.address} has no copy of {self.ref} at step {self.step} any more"
            if (image.ref, image.step) != (self.ref, self.step) or not self.ref.role.isidentifier():
                return f"the agent at {self.address} answered with another image"
            if any("/" in part.name or part.name.startswith(".") for part in image.parts):
                return f"a part of {self.ref} has a name that leaves its folder"
            self._begin(image)
        elif kind == PIECE:
            *_, name, start, size = msgspec.msgpack.decode(body)
            if (name, start, size) in self._asked:
                if len(data) != size:
                    return f"{name} of {self.ref} is shorter than it was"
                self._write(name, start, data)
                self._asked.discard((name, start, size))
        self._ask()
        return ""

    def finish(self) -> Image:
        """Keep the image."""
        assert self._image is not None
        assert self._folder is not None
        self._store.finish(self._image, self._folder)
        return self._image

    def close(self) -> None:
        """Drop the pieces that have come."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, image: Image) -> None:
        self._folder, lacking = self._store.begin(image)
        self._image = image
        for part in lacking:
            _allocate(self._folder / part.name, part.size)
            for start in range(0, part.size, _PIECE):
                self._waiting.append((part.name, start, min(_PIECE, part.size - start)))

    def _ask(self) -> None:
        while self._waiting and len(self._asked) < _AT_ONCE:
            piece = self._waiting.popleft()
            self._asked.add(piece)
            self._send(PIECE, (*self.ref, self.step, self.stamp, *piece))

    def _write(self, name: str, start: int, data: bytes) -> None:
        assert self._folder is not None
        fd = os.open(self._folder / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.pwrite(fd, data, start) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)


def _allocate(path: Path, size: int) -> None:
    """Create a file with its full size, so that a lack of room shows before any piece is sent."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if size:
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
