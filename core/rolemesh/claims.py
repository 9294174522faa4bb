"""Taking a run's folder for a new run: one job of a name at a time, and nothing of an earlier run is lost."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rolemesh.errors import BackendError, NameInUseError
from rolemesh.runs import LOGS_DIR, RUNS_ENV, Run

__all__ = ["claim"]


@contextmanager
def claim(run_dir: Path) -> Iterator[Path | None]:
    """Hold the name of `run_dir` while a job is being started in it; the folder is fresh then.

    Yields where an earlier run is now, if there was one: it moves to ``<runs>/.earlier/<name>-<time>/``. Raises
    `NameInUseError` if its job still lives, or if another one is being started at this moment, and `BackendError` if
    the folder cannot be written.
    """
    with ExitStack() as held:
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((run_dir.parent / f".{run_dir.name}.lock").open("w"))
        except OSError as error:
            raise _unwritable(run_dir.parent, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(run_dir, "is being started at this moment") from None
        run = Run(run_dir)
        if run_dir.exists() and run.alive():
            control = run.control()
            raise _in_use(run_dir, f"is running (pid {control.pid if control else '?'})")
        try:
            earlier = _set_aside(run_dir) if run_dir.exists() else None
            (run_dir / LOGS_DIR).mkdir(parents=True)
        except OSError as error:
            raise _unwritable(run_dir, error) from error
        yield earlier


def _unwritable(path: Path, error: OSError) -> BackendError:
    return BackendError(
        f"the run's folder cannot be made: {error.strerror}",
        where=str(path),
        remedy=f"choose another place with --runs-dir or {RUNS_ENV}",
    )


def _in_use(run_dir: Path, how: str) -> NameInUseError:
    return NameInUseError(
        f"a job named {run_dir.name!r} {how}",
        where=str(run_dir),
        remedy=f"choose another name (name=…), or end it: rolemesh stop {run_dir.name}",
    )


def _set_aside(run_dir: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(run_dir.stat().st_mtime))
    earlier = run_dir.parent / ".earlier"
    earlier.mkdir(exist_ok=True)
    target = earlier / f"{run_dir.name}-{stamp}"
    count = 1
    while target.exists():
        count += 1
        target = earlier / f"{run_dir.name}-{stamp}-{count}"
    os.rename(run_dir, target)
    return target
