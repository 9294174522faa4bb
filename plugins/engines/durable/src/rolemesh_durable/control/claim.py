"""Claim a run's folder for a job whose processes run on one machine, and whose master answers requests.

A missing answer does not prove that a job is dead: its master may be stopped, or wait for a disk. The decision uses the
lock that a job's processes hold (`rolemesh_runtime.lock`), and the backend's knowledge; an answer only counts
in addition.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rolemesh_durable.runs import Run
from rolemesh_runtime.claim import ENDING_S, fresh, in_use, speaker
from rolemesh_runtime.lock import RunLock, UnlockableError, lock_file

__all__ = ["Claim", "claim"]

ANSWER_S = 10.0
"""Seconds in which a master must answer if locks do not work, because its answer is then the only evidence."""
SOON_S = 2.0


Answers: TypeAlias = Callable[[Path, float], bool]
"""Function that returns whether the master of the job in a run's folder answers within a number of seconds."""


def _nobody(run_dir: Path, timeout_s: float) -> bool:
    return False


class Claim(NamedTuple):
    """A claimed run's folder. `earlier` is the new place of an earlier run, if there was one.

    `lock` is the descriptor of the lock of the running job; a process that inherits it holds it, too. -1 if locks do
    not work.
    """

    earlier: Path | None
    lock: int


@contextmanager
def claim(run_dir: Path, known: Callable[[], bool] = lambda: False, answers: Answers = _nobody) -> Iterator[Claim]:
    """Hold the name of `run_dir` while a job is being started in it; the folder is fresh then.

    Raises `NameInUseError` if its job is still running, or if another one is being started now, and `BackendError` if
    the folder cannot be written. `known`: whether the backend knows a job of this name. `answers`: asks the master of a
    job that may be running here.
    """
    run = Run(run_dir)
    with RunLock(run_dir.parent / f".{run_dir.name}.lock") as starting, RunLock(lock_file(run_dir)) as living:
        try:
            if not starting.claim():
                raise in_use(run_dir, "is being started at this moment")
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
            raise in_use(run_dir, f"is running (pid {speaker(run_dir)})")
        earlier = fresh(run_dir)
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
