"""Jobs that wait for room. A file beside the future run's folder says why; the driver locks it as long as it lives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_runtime.claim import in_use
from rolemesh_runtime.lock import RunLock, UnlockableError, is_locked
from rolemesh_runtime.run_files import content_in

__all__ = ["Waiting", "WaitingJob", "waiting_jobs"]

PREFIX, SUFFIX = ".", ".waiting"
MOST_BYTES = 65_536


class Waiting(msgspec.Struct, frozen=True):
    """A job that waits for room since a time in seconds since 1970. `pid` is its driver's, on the machine `host`."""

    job: str
    why: str
    since: float
    pid: int
    host: str

    def __str__(self) -> str:
        """Return what the job waits for, without its name."""
        return f"waits for room (pid {self.pid} on {self.host}): {self.why}"

    @property
    def ending(self) -> str:
        """Return how a user ends it."""
        return f"wait, or end its command: Ctrl-C there, or kill {self.pid} on {self.host}"


class WaitingJob:
    """Shows that the job of `run_dir` waits, from the first `say` on until `close`. `told` takes the same texts."""

    def __init__(self, run_dir: Path, told: Callable[[str], None]) -> None:
        self._run_dir, self._told = run_dir, told
        self._path = run_dir.parent / f"{PREFIX}{run_dir.name}{SUFFIX}"
        self._lock: RunLock | None = None
        self._since = time.time()

    def say(self, why: str) -> None:
        """Tell the user why the job waits. Raises `NameInUseError` if another job of this name waits."""
        self._told(f"waiting for room: {why}")
        lock = self._lock or self._locked()
        waiting = Waiting(self._run_dir.name, why, self._since, os.getpid(), os.uname().nodename)
        data = msgspec.json.encode(waiting) + b"\n"
        with suppress(OSError):  # a full disk must not end a job that waits
            os.pwrite(lock.fd, data, 0)
            os.ftruncate(lock.fd, len(data))

    def _locked(self) -> RunLock:
        lock = RunLock(self._path)
        with suppress(UnlockableError):
            if not lock.claim():
                lock.close()
                raise in_use(self._run_dir, "waits for room")
        self._lock = lock
        return lock

    def close(self) -> None:
        """Remove the file."""
        if self._lock is not None:
            self._path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> WaitingJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def waiting_jobs(folder: Path) -> Iterator[Waiting]:
    """Yield the jobs of the runs folder `folder` that wait, by name. A dead driver's file does not count."""
    for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
        with suppress(OSError, *UNDECODABLE):
            if is_locked(path):
                yield msgspec.json.decode(content_in(folder, path.name, most=MOST_BYTES), type=Waiting)
