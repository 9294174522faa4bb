"""The leftovers of a plugin in its process: threads, processes and files; also those that outlive its process."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import psutil

__all__ = ["GONE_S", "MARK", "adopt_orphans", "files_below", "killed", "marking", "outliving", "still_running"]

GONE_S = 5.0
"""Seconds in which the processes that a plugin has started must end after the plugin's process was killed."""
MARK = "CONFORMANCE_MARK"
"""Environment variable by which `outliving` knows the processes that begin within `marking`."""
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make detached processes children of this one, so that `still_running` and `killed` see them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def still_running() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return threads that would keep this process from ending, and its child processes with their threads."""
    threads = tuple(t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    return threads, tuple(_named(each for each in psutil.Process().children(recursive=True) if _runs(each)))


def killed(processes: Sequence[psutil.Process], patience_s: float | None = None) -> list[str]:
    """Send SIGKILL to `processes` alone, and return their former descendants that run on after `patience_s` seconds.

    None is `GONE_S`. Kills these, too.
    """
    below: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            below += process.children(recursive=True)
            process.kill()
    for process in processes:
        with suppress(psutil.Error):
            process.wait(10.0)
    until = time.monotonic() + (GONE_S if patience_s is None else patience_s)
    while (alive := [each for each in below if _runs(each)]) and time.monotonic() < until:
        time.sleep(0.02)
    names = list(_named(alive))
    for each in alive:
        with suppress(psutil.Error):
            each.kill()
    return names


@contextmanager
def marking() -> Iterator[str]:
    """Set `MARK` to a new value, which programs that begin inside inherit. Yields the value."""
    before = os.environ.get(MARK)
    os.environ[MARK] = mark = token_hex(8)
    try:
        yield mark
    finally:
        os.environ.pop(MARK)
        os.environ.update({} if before is None else {MARK: before})


def outliving(mark: str, patience_s: float | None = None) -> list[str]:
    """Return the processes with this `MARK` that run on after `patience_s` seconds, and kill them. None is `GONE_S`."""
    until = time.monotonic() + (GONE_S if patience_s is None else patience_s)
    while (left := [*_marked(f"{MARK}={mark}".encode())]) and time.monotonic() < until:
        time.sleep(0.05)
    names = list(_named(left))
    for each in left:
        with suppress(psutil.Error):
            each.kill()
    return names


def _marked(line: bytes) -> Iterator[psutil.Process]:
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and _runs(process := psutil.Process(pid)):
                yield process


def files_below(folder: str | Path) -> tuple[str, ...]:
    """Return the files and folders below `folder`, relative to it."""
    return tuple(sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")))


def _named(processes: Iterable[psutil.Process]) -> Iterable[str]:
    for each in processes:
        with suppress(psutil.Error):  # it has ended meanwhile
            yield " ".join(each.cmdline()) or each.name()


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
