"""Patience with the store of a run: work on its folder ends if the store does not answer, and says where it is if it is
slow."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rolemesh.errors import RolemeshError
from rolemesh_runtime.beside import Beside
from rolemesh_runtime.first_look import LIMIT_S

__all__ = ["Readers", "answered"]

LOOK_S = 0.25
"""Seconds between two looks at the thread that works."""
SLOW_S, EVERY_S = 5.0, 10.0
"""Seconds after which a line says where the work is, and between two such lines. On a terminal, one line changes."""
BUSY = 0.1
"""Share of a processor that the process uses if other threads work for the one that is watched."""
T = TypeVar("T")


def answered(
    folder: Path, work: Callable[[], T], *, quiet: bool = False, over: Callable[[], bool] = lambda: False
) -> T:
    """Return what `work` returns, and raise what it raises. Lines on stderr tell where it is, unless it is `quiet`.

    Raises `RolemeshError` if it makes no progress for `LIMIT_S`, or once `over` returns true.
    """
    began = moved = time.monotonic()
    working = Beside(work, "answer")
    thread = working.thread
    cpu, told = _Cpu(thread), _Told(folder, began, quiet)
    try:
        while thread.is_alive():
            thread.join(LOOK_S)
            now = time.monotonic()
            if not thread.is_alive() or cpu.has_grown():
                moved = now
            told.tell(now, thread)
            if now - moved > LIMIT_S or over():
                raise RolemeshError(
                    f"the store of the run has not answered for {now - moved:.0f} s",
                    where=str(_place(thread, folder) or folder),
                    remedy="look whether its file system is mounted and its server answers, and then try again",
                )
    finally:
        told.clear()
    return working.outcome()


class _Cpu:
    """The processor time of a thread, which grows with each answer of a store; and that of the process."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._own, self._all, self._at = -1.0, time.process_time(), time.monotonic()

    def has_grown(self) -> bool:
        """Return whether the thread, or others for it, have worked since the last call."""
        own, all_, at = self._own, self._all, self._at
        if (now := _cpu_s(self._thread)) is None:
            return True
        self._own, self._all, self._at = now, time.process_time(), time.monotonic()
        return self._own != own or self._all - all_ > BUSY * (self._at - at)


class Readers:
    """The threads that work on a folder: `own`, which may wait for another one, and all that have a path in it."""

    def __init__(self, folder: Path, own: threading.Thread) -> None:
        self.place = ""
        """A path in the folder on which one of them worked at the last look; "" for none."""
        self._folder, self._own = folder, own
        self._known: dict[int, float] = {}
        self._began = self._moved = time.monotonic()
        self.still_s()

    def is_alive(self) -> bool:
        """Return whether `own` works or waits."""
        return self._own.is_alive()

    def lasted_s(self) -> float:
        """Return the seconds since the first look."""
        return time.monotonic() - self._began

    def move(self, seconds: float) -> bool:
        """Return whether their processor time has grown in the last `seconds`, as far as the looks tell."""
        return self.still_s() < seconds and self._moved > self._began

    def still_s(self) -> float:
        """Return for how many seconds no processor time of these threads has grown, as far as the looks tell."""
        others = (thread for thread in threading.enumerate() if thread is not threading.current_thread())
        found = {thread: _place(thread, self._folder) for thread in others}
        used = {thread.ident or 0: _cpu_s(thread) for thread, place in found.items() if place or thread is self._own}
        known = {number: seconds for number, seconds in used.items() if seconds is not None}
        if any(seconds > self._known.get(number, seconds) for number, seconds in known.items()):
            self._moved = time.monotonic()
        self._known |= known
        self.place = max(found.values(), key=len, default="")
        return time.monotonic() - self._moved


def _cpu_s(thread: threading.Thread) -> float | None:
    """Return the processor time of a thread; None if it has just ended."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))
    except OSError:
        return None


class _Told:
    """The lines about slow work."""

    def __init__(self, folder: Path, began: float, quiet: bool) -> None:
        self._folder, self._began, self._due = folder, began, float("inf") if quiet else began + SLOW_S
        self._screen, self._width = sys.stderr.isatty(), 0

    def tell(self, now: float, thread: threading.Thread) -> None:
        """Write a line if one is due."""
        if now < self._due or not thread.is_alive():
            return
        place = _place(thread, self._folder)
        at = f": {os.path.relpath(place, self._folder)}" if place and place != str(self._folder) else ""
        line = f"reading {self._folder} for {now - self._began:.0f} s{at}"
        line = "".join(c if c.isprintable() else "?" for c in line)
        if self._screen:
            line = line[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
        print(f"\r{line:<{self._width}}" if self._screen else line, end="" if self._screen else "\n", file=sys.stderr)
        sys.stderr.flush()
        self._width, self._due = len(line), now + (LOOK_S if self._screen else EVERY_S)

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._screen and self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)


def _place(thread: threading.Thread, folder: Path) -> str:
    """Return the path in `folder` that a thread works on, as the innermost of its functions has it; "" for none."""
    root = str(folder)
    for name in _paths(thread):
        if name == root or name.startswith(root + os.sep):
            return name
    return ""


def _paths(thread: threading.Thread) -> Iterator[str]:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        for value in [*frame.f_locals.values()]:
            with suppress(AttributeError):  # a path that the thread just makes has no parts yet
                yield from (str(value),) if isinstance(value, str | Path) else ()
        frame = frame.f_back
