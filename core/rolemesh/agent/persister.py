"""Copies pinned snapshots from an agent's memory to disk, in a thread of its own; training never waits for it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rolemesh.codec import Buffer
from rolemesh.errors import RolemeshError
from rolemesh.protocol.messages import Persisted
from rolemesh.snapshots import crossing, disk
from rolemesh.snapshots.log import LogRecord, OutLog
from rolemesh.snapshots.memory import Image, MemorySnapshots

__all__ = ["Persister"]

_CHUNK = 1 << 20
_NICENESS = 10
_HOLDER = "persister"

_Job: TypeAlias = tuple[str, int, int]
"""Role, rank, step."""


class Persister:
    """Persists the snapshots of the ranks of one agent; its methods are for the agent's loop and return at once.

    A snapshot stays pinned until `forget`, so that the next incarnation of the agent can do it again. If one cannot be
    written, its set cannot become complete: what this agent has of it is removed, and the next set is tried.
    """

    def __init__(self, directory: str | Path, run_dir: str | Path, world_sizes: Mapping[str, int]) -> None:
        """`directory` has the ranks' snapshots, logs and slots."""
        self._directory, self._run_dir = Path(directory), Path(run_dir)
        self._world_sizes = dict(world_sizes)
        self._memory: dict[tuple[str, int], MemorySnapshots] = {}
        self._wanted: deque[_Job] = deque()
        self._known: set[_Job] = set()
        self._done: dict[_Job, Persisted] = {}
        self._failed: list[_Job] = []
        self._lost: set[int] = set()
        self._trouble = ""
        self._given_up = -1
        self._fail = False
        self._stop = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="rolemesh-persister", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why the last set could not be written; empty once a later one could."""
        return self._trouble

    def look(self, role: str, rank: int) -> None:
        """Want whatever this rank has pinned."""
        for step in self._of(role, rank).pinned():
            self.want(role, rank, step)

    def want(self, role: str, rank: int, step: int) -> None:
        """Persist this snapshot, after those that are wanted already."""
        job = role, rank, step
        with self._changed:
            if job not in self._known:
                self._known.add(job)
                self._wanted.append(job)
                self._changed.notify_all()
        self._let_go()

    def died(self, role: str, rank: int) -> None:
        """A rank has died: what it has pinned goes to disk before anything else."""
        self.look(role, rank)
        with self._changed:
            first = [job for job in self._wanted if job[:2] == (role, rank)]
            self._wanted = deque(first + [job for job in self._wanted if job not in first])

    def results(self) -> list[Persisted]:
        """What is on disk and not yet forgotten."""
        self._let_go()
        with self._changed:
            return list(self._done.values())

    def forget(self, step: int) -> None:
        """A set of `step` is complete: older ones need not be reported, and their memory may go."""
        self._let_go()
        with self._changed:
            over = [job for job in self._known if job[2] <= step]
            self._known.difference_update(over)
            self._wanted = deque(job for job in self._wanted if job[2] > step)
            for job in over:
                self._done.pop(job, None)
        for role, rank, old in over:
            self._of(role, rank).unpin(old)

    def drop_after(self, role: str, rank: int, step: int) -> None:
        """A rank starts again after `step`: what it had pinned later is not to be reported any more."""
        with self._changed:
            over = [job for job in self._known if job[:2] == (role, rank) and job[2] > step]
            self._known.difference_update(over)
            self._wanted = deque(job for job in self._wanted if job not in over)
            for job in over:
                self._done.pop(job, None)

    def fail_next(self) -> None:
        """Rehearsal: the next file is written as if the disk became full in the middle."""
        self._fail = True

    def close(self, timeout_s: float = 10.0) -> None:
        """End after the chunk that is being written; what is not finished is removed."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _of(self, role: str, rank: int) -> MemorySnapshots:
        found = self._memory.get((role, rank))
        if found is None:
            found = self._memory[role, rank] = MemorySnapshots(self._directory, role, rank)
            for step in found.steps():
                found.release(step, _HOLDER)  # an earlier incarnation may have died holding it
        return found

    def _let_go(self) -> None:
        """Unpin what could not be written, and what can no longer become a complete set."""
        with self._changed:
            given_up, self._failed = self._failed, []
            self._known.difference_update(given_up)
        for role, rank, step in given_up:
            self._of(role, rank).unpin(step)

    # -------------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                while not self._wanted and not self._stop:
                    self._changed.wait()
                if self._stop:
                    return
                job = self._wanted.popleft()
            self._attempt(job)

    def _attempt(self, job: _Job) -> None:
        role, rank, step = job
        try:
            files = self._persist(job)
        except (OSError, RolemeshError) as error:
            if not self._stop:
                self._give_up(job, error)
            return
        with self._changed:
            if files is None:  # the snapshot is gone: its rank was restored to an earlier step, and will take it again
                self._known.discard(job)
            else:
                self._done[job] = Persisted(role, rank, step, files)
                if step > self._given_up:
                    self._trouble = ""

    def _give_up(self, job: _Job, error: OSError | RolemeshError) -> None:
        role, rank, step = job
        why = error.strerror or str(error) if isinstance(error, OSError) else error.what
        with self._changed:
            self._trouble = (
                f"the snapshot of step {step} is not on disk: {role}/{rank}: {why}; training goes on, "
                f"and the next set is tried (in {disk.snapshots_folder(self._run_dir)})"
            )
            self._given_up = max(step, self._given_up)
            same = [other for other in self._known if other[2] == step]
            self._wanted = deque(other for other in self._wanted if other[2] != step)
            written = [self._done.pop(other) for other in same if other in self._done]
            self._failed += same
        folder = disk.step_folder(self._run_dir, step)
        for persisted in written:
            for name in persisted.files:
                (folder / name).unlink(missing_ok=True)
        for each in (folder / role, folder):
            with contextlib.suppress(OSError):
                each.rmdir()

    def _persist(self, job: _Job) -> dict[str, tuple[int, str]] | None:
        role, rank, step = job
        memory = MemorySnapshots(self._directory, role, rank)
        if not memory.hold(step, _HOLDER):
            return None
        try:
            image = memory.image(step)
            if image is None:
                return None
            sent = crossing.crossing(OutLog.read(self._directory, role, rank, image.log), step)
            temporary = self._write(job, image, sent)
            now = memory.image(step)
            if now is None or now.serial != image.serial:
                for path, _ in temporary.values():
                    path.unlink(missing_ok=True)
                return None
            return self._finish(job, temporary)
        finally:
            memory.release(step, _HOLDER)
            memory.close()

    def _write(self, job: _Job, image: Image, sent: list[LogRecord]) -> dict[str, tuple[Path, _Writer]]:
        role, rank, step = job
        size = self._world_sizes[role]
        folder = disk.step_folder(self._run_dir, step)
        written: dict[str, tuple[Path, _Writer]] = {}
        try:
            (folder / role).mkdir(parents=True, exist_ok=True)
            for name in (disk.state_file(role, rank, size), disk.edges_file(role, rank, size)):
                is_state = name.endswith(".safetensors")
                if image.path is None if is_state else not sent:
                    continue
                path = folder / role / f".{Path(name).name}.part"
                writer = _Writer(path, self)
                written[name] = path, writer
                with writer:
                    if is_state:
                        writer.copy(image)
                    else:
                        crossing.write(writer.write, sent, self._directory)
            return written
        except BaseException:
            for path, _ in written.values():
                path.unlink(missing_ok=True)
            raise

    def _finish(self, job: _Job, written: dict[str, tuple[Path, _Writer]]) -> dict[str, tuple[int, str]]:
        folder = disk.step_folder(self._run_dir, job[2])
        for name, (path, _) in written.items():
            os.replace(path, folder / name)
        if written:
            for each in (folder / job[0], folder, folder.parent):
                disk.sync_folder(each)
        return {name: (writer.size, writer.sha.hexdigest()) for name, (_, writer) in written.items()}

    def check(self, writer: _Writer) -> None:
        """Before each piece is written: stop, or pretend that the disk is full."""
        if self._stop:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if self._fail and writer.size:
            self._fail = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Writer:
    """A file that is being written, with the sha256 of what it has."""

    def __init__(self, path: Path, owner: Persister) -> None:
        self.size = 0
        self.sha = hashlib.sha256()
        self._owner = owner
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self._owner.check(self)
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _CHUNK):
            self._owner.check(self)
            piece = view[start : start + _CHUNK]
            self.sha.update(piece)
            at = 0
            while at < len(piece):
                at += os.write(self._fd, piece[at:])
            self.size += len(piece)

    def copy(self, image: Image) -> None:
        """Copy the image's file. It is read, not mapped: its rank may cut it while we are at it."""
        assert image.path is not None
        source = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            buffer = memoryview(bytearray(min(_CHUNK, image.size)))
            while self.size < image.size:
                count = os.readv(source, [buffer[: min(_CHUNK, image.size - self.size)]])
                if not count:
                    return  # cut short, so it was replaced: its serial will tell
                self.write(buffer[:count])
        finally:
            os.close(source)
