"""Copy pinned snapshots from an agent's memory to disk, in a thread of its own. Training never waits for it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_durable.agent.copy_attempt import HOLDER, CopyAttempt, Removed
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.messages import Persisted

__all__ = ["Persister"]

log = logging.getLogger("rolemesh_durable.agent")

STALL_S = 30.0
"""Seconds without a write after which the disk counts as stalled."""
_NICENESS = 10
_PAUSE_S = 1.0
TOGETHER = 32
"""Maximum number of snapshots that are made durable together. Until then each has up to two open files."""
_SMALL = 16 << 20
"""Maximum size in bytes of the snapshots made durable together, not counting the last."""

_Key: TypeAlias = tuple[RankRef, int]
"""A rank and a step."""


GIVEN_UP = "given-up"
"""File in the agent's folder with the newest step whose checkpoint this agent failed to write."""


class _Job:
    """A snapshot to persist. It is discarded when another one, or none, is registered under its key."""

    def __init__(self, key: _Key, timeline: int) -> None:
        self.key, self.timeline = key, timeline
        self.part: CopyAttempt | None = None
        """Its files, when they are on disk."""


class Persister:
    """Persists the snapshots of the ranks of one agent. The agent's loop calls its methods, which return at once.

    A snapshot stays pinned until `forget`, so that the next incarnation of the agent can write it again. If one cannot
    be written, its checkpoint cannot become complete: this agent removes its parts of it and tries the next checkpoint.
    `start` starts the thread that calls `work`; no failure ends this thread.
    """

    def __init__(
        self, directory: str | Path, run_dir: str | Path, world_sizes: Mapping[str, int], timeline: int = 0,
        written: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """`directory` has the ranks' snapshots, logs and slots, all of them of `timeline`.

        The thread calls `written` whenever `results` has more than before.
        """
        self._directory, self._run_dir, self._written = Path(directory), Path(run_dir), written
        self._first = self._world_sizes = dict(world_sizes)
        self._timeline = timeline
        self._generations: dict[RankRef, int] = {}
        self._memory: dict[RankRef, MemorySnapshots] = {}
        self._wanted: deque[_Job] = deque()
        self._known: dict[_Key, _Job] = {}
        self._failed: list[_Job] = []
        self._over: list[CopyAttempt] = []
        self._covered = -1
        self._warning = ""
        self._failed_at = _given_up(self._directory)
        self._step, self._progress = -1, 0.0
        self._fail = False
        self._stop = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="rolemesh-persister", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def relayout(self, layout: Layout) -> None:
        """Roles have other numbers of ranks from now on."""
        self._world_sizes = layout.world_sizes(self._first)

    @property
    def warning(self) -> str:
        """Return why checkpoints cannot be written; empty when a later one succeeded."""
        step, idle = self._step, time.monotonic() - self._progress
        if step >= 0 and idle > STALL_S and not self._warning:
            return (
                f"the disk has taken nothing of the snapshot of step {step} for more than {STALL_S:g} s; training "
                f"goes on, and it is waited for (in {disk.snapshots_folder(self._run_dir)})"
            )
        return self._warning

    @property
    def given_up(self) -> int:
        """Return the newest step whose checkpoint cannot become complete because this agent failed to write its part;
        -1 for none."""
        return self._failed_at

    def look(self, role: str, rank: int, first: int = -1) -> bool:
        """Register the snapshots that this rank has pinned, and let that of the step `first` overtake all others.

        Return whether any is new.
        """
        self._let_go()
        return True in [self.want(role, rank, step, first=step == first) for step in self._of(role, rank).pinned()]

    def want(self, role: str, rank: int, step: int, *, first: bool = False) -> bool:
        """Persist this snapshot after those registered before, or before them. Return whether it is new."""
        key = RankRef(role, rank), step
        with self._changed:
            covered = step <= self._covered
            if new := not covered and key not in self._known:
                job = self._known[key] = _Job(key, self._timeline)
                (self._wanted.appendleft if first else self._wanted.append)(job)
                self._changed.notify_all()
        if covered:
            self._of(role, rank).unpin(step)
        return new

    def died(self, role: str, rank: int) -> None:
        """A rank died: persist its pinned snapshots before all others."""
        self.look(role, rank)
        with self._changed:
            self._wanted = deque(sorted(self._wanted, key=lambda job: job.key[0] != (role, rank)))

    def results(self) -> list[Persisted]:
        """Return the snapshots that are on disk and not forgotten."""
        self._let_go()
        with self._changed:
            found = []
            for (rank, step), job in self._known.items():
                if (part := job.part) is not None:
                    generation = self._generations.get(rank, 0)
                    found.append(Persisted(*rank, step, part.files, job.timeline, generation, part.attempt))
            return found

    def forget(self, step: int) -> None:
        """A checkpoint of `step` is complete: older ones need no reports, and their memory may be freed."""
        self._let_go()
        with self._changed:
            self._covered = max(step, self._covered)
            if step > self._failed_at:  # small snapshots may fit where large ones do not
                self._warning = ""
            over = [job for key, job in self._known.items() if key[1] <= step]
            self._drop(over)
            # The checkpoint may have been made of another attempt's files: what is left of this one is in nobody's
            # checkpoint.
            self._over += [job.part for job in over if job.part is not None]
            self._changed.notify_all()
        for job in over:
            self._of(*job.key[0]).unpin(job.key[1])

    def restarted(self, role: str, rank: int, step: int, generation: int) -> None:
        """A rank restarts after `step`, as `generation`: its later pinned snapshots are discarded."""
        with self._changed:
            self._generations[RankRef(role, rank)] = generation
            self._failed_at = min(self._failed_at, step)  # later checkpoints may be written after all
            self._drop([job for key, job in self._known.items() if key[0] == (role, rank) and key[1] > step])

    def adopted(self, role: str, rank: int, generation: int) -> None:
        """A rank runs as `generation`, which an earlier incarnation of the agent started."""
        with self._changed:
            self._generations[RankRef(role, rank)] = generation

    def forget_timeline(self, timeline: int) -> None:
        """Discard all pinned snapshots, including the one that is being written. New ones belong to `timeline`."""
        with self._changed:
            (self._directory / GIVEN_UP).unlink(missing_ok=True)
            self._timeline, self._covered, self._failed_at = timeline, -1, -1
            self._drop(list(self._known.values()))

    def fail_next(self) -> None:
        """Rehearsal: fail the next file in the middle, as if the disk were full."""
        self._fail = True

    def close(self, timeout_s: float = 10.0) -> None:
        """End after the current piece; remove unfinished files."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            for memory in self._memory.values():
                memory.close()

    def _of(self, role: str, rank: int) -> MemorySnapshots:
        found = self._memory.get(RankRef(role, rank))
        if found is None:
            found = self._memory[RankRef(role, rank)] = MemorySnapshots(self._directory, role, rank)
            for step in found.steps():
                found.release(step, HOLDER)  # an earlier incarnation may have died holding it
        return found

    def _drop(self, jobs: list[_Job]) -> None:
        for job in jobs:
            del self._known[job.key]
        self._wanted = deque(job for job in self._wanted if job not in jobs)

    def _let_go(self) -> None:
        """Unpin snapshots that could not be written, and those that cannot become a complete checkpoint any more."""
        with self._changed:
            given_up, self._failed = self._failed, []
            self._drop([job for job in given_up if self._known.get(job.key) is job])
        if given_up:
            with contextlib.suppress(OSError):  # full: whoever comes after this agent waits for it in vain, for a while
                (self._directory / GIVEN_UP).write_text(str(self._failed_at))
        for job in given_up:
            self._of(*job.key[0]).unpin(job.key[1])

    # -------------------------------------------------------------------------------------------------- the thread

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._changed:
                while not (self._wanted or self._over or self._stop):
                    self._changed.wait()
                if self._stop:
                    return
            try:
                self.work()
            except Exception:
                log.exception("persisting goes on after an error")
                time.sleep(_PAUSE_S)

    def work(self) -> bool:
        """Persist registered snapshots; small ones of the same step are made durable together. Return False if there
        are none."""
        with self._changed:
            over, self._over = self._over, []
        for part in over:
            part.remove()
        written: dict[_Job, CopyAttempt] = {}
        try:
            while job := self._next(written):
                try:
                    self._write(job, written)
                except Exception as error:
                    self._not_written(job, error, written)
                    return True
            self._sync(written)
            return self._step >= 0
        finally:
            for part in written.values():
                part.remove()
            self._step = -1

    def _next(self, written: Mapping[_Job, CopyAttempt]) -> _Job | None:
        """Return the next snapshot to write before all of `written` are made durable."""
        with self._changed:
            if not self._wanted or len(written) >= TOGETHER or sum(part.size for part in written.values()) > _SMALL:
                return None
            step = self._wanted[0].key[1]
            if self._step not in (-1, step):
                return None
            self._step, self._progress = step, time.monotonic()
            return self._wanted.popleft()

    def _write(self, job: _Job, written: dict[_Job, CopyAttempt]) -> None:
        (role, rank), step = job.key
        part = CopyAttempt(self._run_dir, role, rank, self._world_sizes[role], step, job.timeline)
        if part.copy(self._directory, self._check):
            written[job] = part
        else:  # the snapshot is gone: its rank was restored to an earlier step, and will take it again
            with self._changed:
                if self._known.get(job.key) is job:
                    del self._known[job.key]
            if not written:  # the next may be of another step: what is gone costs no turn
                self._step = -1

    def _sync(self, written: dict[_Job, CopyAttempt]) -> None:
        synced: set[Path] = set()
        for job, part in list(written.items()):
            try:
                self._check(0)
                part.sync(synced)
            except Exception as error:
                self._not_written(job, error, written)
                return
            with self._changed:
                if self._known.get(job.key) is not job:
                    continue
                job.part = written.pop(job)
                self._known[job.key] = self._known.pop(job.key)  # in the order in which they came to disk
        self._written()

    def _not_written(self, job: _Job, error: Exception, written: Collection[_Job]) -> None:
        """The snapshot cannot be written. Those in `written`, which are of the same step, fail with it."""
        if isinstance(error, Removed):
            newest = -1
            with contextlib.suppress(OSError, SnapshotError):  # the disk does not answer
                newest = disk.newest_complete(self._run_dir)
            if newest >= job.key[1]:
                with self._changed:  # a newer checkpoint is complete: nobody needs these any more
                    self._failed += [
                        each for each in dict.fromkeys([job, *written]) if self._known.get(each.key) is each
                    ]
                return
            error = SnapshotError("its folder was removed while it was being written")
        if not self._stop:
            self._give_up(job, _reason(error))

    def _give_up(self, job: _Job, why: str) -> None:
        rank, step = job.key
        with self._changed:
            if self._known.get(job.key) is not job:
                return  # void meanwhile
            if not self._warning:  # once, however many checkpoints it lasts
                self._warning = (
                    f"the snapshot of step {step} is not on disk: {rank}: {why}; the job "
                    f"goes on without it (in {disk.snapshots_folder(self._run_dir)})"
                )
            self._failed_at = max(step, self._failed_at)
            same = [other for other in self._known.values() if other.key[1] == step]
            self._wanted = deque(other for other in self._wanted if other not in same)
            self._failed += same
            written = [other.part for other in same if other.part is not None]
            for other in same:
                other.part = None
        for part in written:
            part.remove()

    def _check(self, size: int) -> None:
        """Called before each piece: stop, or simulate a full disk."""
        self._progress = time.monotonic()
        if self._stop:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if self._fail and size:
            self._fail = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, RolemeshError):
        return error.what
    log.error("a snapshot could not be persisted", exc_info=error)
    return f"{type(error).__name__}: {error}"


def _given_up(shm: Path) -> int:
    try:
        return int((shm / GIVEN_UP).read_text())
    except (OSError, ValueError):
        return -1
