"""Calls an observer as the master or the driver does, and collects its exceptions and its effects on the process."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from time import monotonic, sleep
from typing import Any, Literal, TypeAlias

import msgspec
import pytest

from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_testing.guard import Guard
from rolemesh_testing.leftovers import still_running
from rolemesh_testing.observers.lives import Told, whole_life
from rolemesh_testing.subprocess_probe import Subject

__all__ = ["Order", "Seen", "Trouble", "Watcher", "watch_there"]

Trouble: TypeAlias = Literal["", "vanished", "no folder", "full"]
"""Damage to the run's folder: removed after the start, never a folder, or full."""


class Watcher(logging.Handler):
    """One instance of the observer. `raised` has the exceptions of its hooks, `fatal` those that would have ended a
    master.
    """

    def __init__(self, record: PluginRecord, cls: type[Any], options: Any) -> None:
        super().__init__()
        self._plugins = JobPlugins()
        self._plugins.create(record.name, record, cls, options)
        self.raised: list[str] = []
        self.fatal: list[str] = []
        self._hook = ""

    def tell(self, told: Iterable[Told]) -> None:
        """Call hooks in order, like `JobPlugins.broadcast`."""
        log = logging.getLogger("rolemesh.plugins")
        log.addHandler(self)
        propagates, log.propagate = log.propagate, False
        try:
            for self._hook, arguments in told:
                try:
                    self._plugins.broadcast(self._hook, **arguments)
                except pytest.fail.Exception:
                    raise  # the time limit of the test: the hook hangs
                except BaseException as error:
                    self.fatal.append(f"{self._hook}() raises {type(error).__name__}, which ends the process")
        finally:
            log.propagate = propagates
            log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the exceptions that `broadcast` logs."""
        error = record.exc_info[1] if record.exc_info else None
        self.raised.append(f"{self._hook}() raises {type(error).__name__}: {error}")


class Order(msgspec.Struct, frozen=True):
    """A life to watch in another process. It gives the folder `run_dir` and the damage to it."""

    run_dir: str
    trouble: Trouble = ""


class Seen(msgspec.Struct):
    """The effects of a life on its process. `wrote` has the paths outside of the run's folder."""

    raised: list[str] = []
    fatal: list[str] = []
    wrote: list[str] = []
    threads: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def watch_there(subject: Subject, order: bytes) -> bytes:
    """Watch a whole life in another process, and return the effects."""
    asked = msgspec.msgpack.decode(order, type=Order)
    watcher = Watcher(subject.record, *subject.loaded())
    seen = Seen()
    run_dir = Path(asked.run_dir)
    life = whole_life(asked.run_dir)
    sys.addaudithook(Guard((run_dir,), subject.record.target, seen.wrote))
    limits = getrlimit(RLIMIT_FSIZE)
    if asked.trouble == "no folder":
        run_dir.write_bytes(b"")
    else:
        run_dir.mkdir()
        watcher.tell(life[:2])
        life = life[2:]
    if asked.trouble == "vanished":
        shutil.rmtree(run_dir)
    elif asked.trouble == "full":
        setrlimit(RLIMIT_FSIZE, (0, limits[1]))
    watcher.tell(life)
    setrlimit(RLIMIT_FSIZE, limits)
    seen.threads, seen.children = _left()
    seen.raised, seen.fatal = watcher.raised, watcher.fatal
    return msgspec.msgpack.encode(seen)


def _left(patience_s: float = 2.0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return threads that keep the process alive, and its children, after a wait for those that are about to end."""
    deadline = monotonic() + patience_s
    while True:
        threads, children = still_running()
        if not (threads or children) or monotonic() > deadline:
            return threads, children
        sleep(0.02)
