"""A file system that can be full, refuse, be slow, and lose what was not synced: the system calls below the real code.

The files are real ones in a tmpfs; calls for paths under the simulated roots are looked at first. A call that is slow
lets others act meanwhile (`meanwhile`). `crash` leaves of the disk what a power cut would: names that were synced with
their folder, bytes that were synced with their file; of everything else any part, or nothing.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

__all__ = ["FileSystem"]

_PATHS = ("open", "mkdir", "unlink", "replace", "rename", "link", "rmdir")
_FILES = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "posix_fallocate")


class FileSystem:
    """The disk at `disk` and any number of nodes' memories under `memory`."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.rng = rng
        self.disk, self.memory = root / "disk", root / "memory"
        for each in (self.disk, self.memory):
            each.mkdir()
        self.full: set[Path] = set()
        """Folders under which nothing can be written now."""
        self.refuses = 0.0
        """How often a call on the disk fails with EIO."""
        self.slow = 0.0
        """How often others act before a call on the disk goes on."""
        self.tears = 0.0
        """How often a write takes only a part of what it is given."""
        self.meanwhile: Callable[[], None] = lambda: None
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._real = {name: getattr(os, name) for name in (*_PATHS, *_FILES)}

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The calls are intercepted."""
        with ExitStack() as stack:
            for name in _PATHS:
                stack.enter_context(patch.object(os, name, self._with_path(name)))
            for name in _FILES:
                stack.enter_context(patch.object(os, name, self._with_file(name)))
            listed, scanned = os.listdir, os.scandir  # in any order, and a schedule is to be played again
            stack.enter_context(patch.object(os, "listdir", lambda path=".": sorted(listed(path))))
            stack.enter_context(patch.object(os, "scandir", lambda path=".": _Entries(scanned(path))))
            # It would remove by names relative to open folders.
            stack.enter_context(patch.object(shutil, "_use_fd_functions", False))
            yield

    def _with_path(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(path: Any, *arguments: Any, **more: Any) -> Any:
            target = str(arguments[0]) if name in ("replace", "rename", "link") else str(path)
            makes = name in ("mkdir", "link") or (name == "open" and bool(arguments[0] & os.O_CREAT))
            self._before(target, makes and not os.path.lexists(target))
            return real(path, *arguments, **more)

        return call

    def _with_file(self, name: str) -> Callable[..., Any]:
        real = self._real[name]

        def call(fd: int, *arguments: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if name in ("write", "pwrite") and self._is_full(path) and len(arguments[0]) > 1:
                real(fd, bytes(arguments[0])[: len(arguments[0]) // 2], *arguments[1:])  # what still fitted
            grows = name in ("write", "pwrite", "posix_fallocate") and (
                name != "posix_fallocate" or os.fstat(fd).st_size < sum(arguments)
            )
            self._before(path, grows)
            if name == "write" and self.tears and self.rng.random() < self.tears:
                return real(fd, bytes(arguments[0])[: self.rng.randint(1, len(arguments[0]))])
            result = real(fd, *arguments)
            if name in ("fsync", "fdatasync") and path.startswith(str(self.disk)):
                self._sync(fd)
            return result

        return call

    def _is_full(self, path: str) -> bool:
        return any(path.startswith(f"{folder}/") for folder in self.full)

    def _before(self, path: str, grows: bool) -> None:
        if path.startswith(f"{self.disk}/"):
            if self.slow and self.rng.random() < self.slow:
                self.meanwhile()
            if self.refuses and self.rng.random() < self.refuses:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if grows and self._is_full(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # ------------------------------------------------------------------------------------------------- power cuts

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        number = os.fstat(fd).st_ino
        if path.is_dir():
            self._names[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._bytes[number] = path.read_bytes()

    def durable(self, path: Path) -> bytes:
        """Return the bytes of a file that a power cut surely leaves on the disk."""
        if not path.exists() or self._names.get(os.stat(path.parent).st_ino, {}).get(path.name) is None:
            return b""
        return self._bytes.get(os.stat(path).st_ino, b"")

    def crash(self) -> None:
        """The power is cut: the disk has what is durable, and by chance some of the rest."""
        with self.fair():
            self._lose()

    @contextmanager
    def fair(self) -> Iterator[None]:
        """Nothing fails meanwhile: for what the simulation itself does and looks at."""
        weather = self.full, self.refuses, self.slow
        self.full, self.refuses, self.slow = set(), 0.0, 0.0
        try:
            yield
        finally:
            self.full, self.refuses, self.slow = weather

    def _lose(self) -> None:
        present: dict[int, bytes] = {}
        folders: dict[int, dict[str, int]] = {}
        for folder, _, files in os.walk(self.disk):
            entries = {entry.name: entry.inode() for entry in os.scandir(folder)}
            folders[os.stat(folder).st_ino] = entries
            for name in files:
                present[entries[name]] = Path(folder, name).read_bytes()
        top = os.stat(self.disk).st_ino
        after: dict[str, bytes | None] = {}
        self._lay_out(top, "", folders, present, after)
        for entry in list(os.scandir(self.disk)):
            shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else self._real["unlink"](entry.path)
        for name, data in sorted(after.items()):
            path = self.disk / name
            if data is None:
                self._real["mkdir"](path)
            else:
                path.write_bytes(data)
        self._bytes.clear()
        self._names.clear()
        for folder, _, files in os.walk(self.disk):  # what came through is durable
            self._names[os.stat(folder).st_ino] = {entry.name: entry.inode() for entry in os.scandir(folder)}
            for name in files:
                self._bytes[os.stat(Path(folder, name)).st_ino] = Path(folder, name).read_bytes()

    def _lay_out(
        self,
        folder: int,
        prefix: str,
        folders: dict[int, dict[str, int]],
        present: dict[int, bytes],
        after: dict[str, bytes | None],
    ) -> None:
        durable, now = self._names.get(folder, {}), folders.get(folder, {})
        for name in sorted({*durable, *now}):
            number = durable.get(name)
            if durable.get(name) != now.get(name) and self.rng.random() < 0.5:
                number = now.get(name)
            if number is None:
                continue
            if number in folders or number in self._names:
                after[f"{prefix}{name}"] = None
                self._lay_out(number, f"{prefix}{name}/", folders, present, after)
            else:
                whole, synced = present.get(number), self._bytes.get(number)
                if whole is not None and whole != synced:  # not synced since: any part of it
                    whole = whole[: self.rng.randint(len(synced or b""), max(len(whole), len(synced or b"")))]
                after[f"{prefix}{name}"] = whole if whole is not None else synced or b""


class _Entries:
    """The entries of `os.scandir`, in order."""

    def __init__(self, entries: Iterable[Any]) -> None:
        self._left = iter(sorted(entries, key=lambda entry: entry.name))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Iterator[Any]:
        return self

    def __exit__(self, *_: object) -> None:
        pass
