"""Taking a run's folder for a new run: one job of a name at a time, and nothing of an earlier run is lost.

That nobody answers is no sign that nobody lives: a master may be stopped, or wait for a disk. What counts is the lock
that a job's processes hold (`rolemesh.runs.lock`), and what the backend knows; an answer is asked for only besides.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rolemesh.errors import BackendError, NameInUseError
from rolemesh.runs.lock import RunLock, UnlockableError, lock_file
from rolemesh.runs.run import LOGS_DIR, RUNS_ENV, Run

__all__ = ["Claim", "claim"]

ENDING_S = 30.0
"""How long the processes of a job that has its result may take to leave."""
ANSWER_S = 10.0
"""How long a master may take to answer where locks do not work, so that its answer is all there is to go by."""
SOON_S = 2.0


Answers: TypeAlias = Callable[[Path, float], bool]
"""Whether the master of the job in a run's folder answers within so many seconds."""


def _nobody(run_dir: Path, timeout_s: float) -> bool:
    return False


class Claim(NamedTuple):
    """A run's folder that was taken. `earlier` is where an earlier run is now, if there was one.

    `lock` is the descriptor of the lock that says that somebody lives here; whoever inherits it holds it, too. -1 where
    locks do not work.
    """

    earlier: Path | None
    lock: int


@contextmanager
def claim(run_dir: Path, known: Callable[[], bool] = lambda: False, answers: Answers = _nobody) -> Iterator[Claim]:
    """Hold the name of `run_dir` while a job is being started in it; the folder is fresh then.

    An earlier run moves to ``<runs>/.earlier/<name>-<time>/``. Raises `NameInUseError` if its job still lives, or if
    another one is being started at this moment, and `BackendError` if the folder cannot be written. `known`: whether
    the backend knows of a job of this name. `answers`: how to ask a master that a job may have here.
    """
    run = Run(run_dir)
    with ExitStack() as held:
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            starting = held.enter_context(RunLock(run_dir.parent / f".{run_dir.name}.lock"))
            living = held.enter_context(RunLock(lock_file(run_dir)))
        except OSError as error:
            raise _unwritable(run_dir.parent, error) from error
        try:
            if not starting.claim():
                raise _in_use(run_dir, "is being started at this moment")
            taken, lock = _lives(run, living), living.fd
        except UnlockableError as error:
            print(
                f"warning: {run_dir.parent} is on a file system without locks ({error.strerror}): whether a job lives "
                "there is judged by its master's answer",
                file=sys.stderr,
            )
            taken, lock = answers(run_dir, ANSWER_S), -1
        # The others: a job of a rolemesh that knew no lock, or on another machine where locks end at the machine.
        if taken or known() or answers(run_dir, SOON_S):
            control = run.control()
            raise _in_use(run_dir, f"is running (pid {control.pid if control else '?'})")
        try:
            earlier = _set_aside(run_dir) if run_dir.exists() else None
            run_dir.mkdir(mode=0o755)  # whatever the umask: only then its job file is this user's word
            (run_dir / LOGS_DIR).mkdir()
        except OSError as error:
            raise _unwritable(run_dir, error) from error
        if lock >= 0:
            living.share()  # from here on the job's processes hold it together
        yield Claim(earlier, lock)


def _lives(run: Run, lock: RunLock) -> bool:
    if lock.claim():
        return False
    if run.result() is None:
        return True
    print(f"waiting for the last processes of the {run.name} before to leave", file=sys.stderr)
    return not lock.claim(ENDING_S)


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
