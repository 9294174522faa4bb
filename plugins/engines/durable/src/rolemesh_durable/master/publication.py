"""The writer of ``events.jsonl`` and ``metrics.jsonl``: news are on disk before anything relies on them.

Ranks keep their lines of metrics until the master sends `Published`, which it does when the disk has them. A thread of
its own waits here for a disk that is full, or gone for a while.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.runs.jsonl import Numbered, event_line, metrics_line
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE
from rolemesh_durable.journal.line_file import LineFile
from rolemesh_durable.master.writer import may_pass

__all__ = ["DRAIN_S", "Publication"]

log = logging.getLogger("rolemesh_durable.master")

PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Maximum seconds between two attempts of a failing write. The pause doubles up to this."""
DRAIN_S = 60.0
"""Maximum seconds that the writer waits at the job's end for writes that fail with an error that does not pass."""
MOST_WAITING = 16384
"""Maximum number of events and lines that wait for the disk. Beyond it the master builds no further lines.

That takes less memory, and ranks have been granted no more.
"""
MOST_AT_ONCE = 2048
"""Maximum number of these that are written together: a disk with little room takes as many as fit."""


class _Observers(Protocol):
    def broadcast(self, hook: str, /, **arguments: object) -> object:
        """Call `hook` of every observer, soon."""


class Publication:
    """Appends news in order, then tells the observers and reports progress to `written`.

    `written(step, held)` is called in the writer's thread when metrics up to `step` are durable, and with `held` when
    it can write nothing at present. A new master's publication continues after the last complete line of its
    predecessor's. It touches no file before `start`. Its thread only calls `take` and `attempt` in turn.
    """

    def __init__(self, run_dir: Path, observers: _Observers, written: Callable[[int, bool], None]) -> None:
        self._events = LineFile(run_dir / EVENTS_FILE, "seq", 1)
        self._metrics = LineFile(run_dir / METRICS_FILE, "step", 0)
        self._observers, self._written = observers, written
        self._waiting: list[Event | StepMetrics] = []
        self._taken = 0
        self._news = threading.Condition()
        self._closing = False
        self._stall_s = 0.0
        self._given_up = threading.Event()
        self._failing: tuple[float, OSError] | None = None
        self._begins = True
        self._batch: list[Event | StepMetrics] = []
        self._lines: dict[LineFile, list[Numbered]] = {}
        self._pause = PAUSE_S
        self._thread = threading.Thread(target=self._serve, name="publication", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, news: Iterable[Event | StepMetrics]) -> None:
        """Queue `news` for the writer."""
        with self._news:
            self._waiting += news
            self._news.notify()

    @property
    def told(self) -> int:
        """Number of the last event that is on disk, as far as this process knows."""
        return self._events.last

    @property
    def patient(self) -> bool:
        """True if writing fails for a reason that may pass: the disk is full, or does not answer as it should."""
        return self._failing is not None and may_pass(self._failing[1])

    @property
    def full(self) -> bool:
        """True if so much waits for the disk that the master should add nothing for now."""
        return len(self._waiting) + self._taken > MOST_WAITING

    @property
    def warning(self) -> str:
        """The reason why the writer cannot write at present; "" if it can."""
        failing = self._failing
        if failing is None:
            return ""
        since, error = failing
        return f"metrics and events cannot be written since {time.monotonic() - since:.0f} s: {error}"

    def stall(self, seconds: float) -> None:
        """Rehearsal: block the next write for this time, as on a file system whose server does not answer."""
        self._stall_s = seconds

    def close(self) -> None:
        """Accept no more news."""
        with self._news:
            self._closing = True
            self._news.notify()

    def wait(self, timeout_s: float) -> bool:
        """Return True if everything is written within `timeout_s` after `close`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def give_up(self) -> str:
        """Write nothing more. Return what has not been written; "" if all has."""
        self._given_up.set()
        if not self._thread.is_alive():
            return ""
        with self._news:
            left = len(self._waiting) + self._taken
        where = self._metrics.path.parent
        return f"{left} events and lines of metrics are not written to {where}: {self.warning or 'it is slow'}"

    def _serve(self) -> None:
        while self.take():
            while pause := self.attempt():
                if self._given_up.wait(pause):
                    break
            if self._given_up.is_set():
                break
        self._events.close()
        self._metrics.close()

    def take(self) -> bool:
        """Wait for news and take them; return False at the end. The first call takes none."""
        with self._news:
            while not (self._begins or self._waiting or self._closing):
                self._news.wait()
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            self._taken = len(batch)
        self._batch = batch
        self._lines = {
            self._events: [event_line(news) for news in batch if isinstance(news, Event)],
            self._metrics: [metrics_line(news) for news in batch if isinstance(news, StepMetrics)],
        }
        self._pause = PAUSE_S
        return self._begins or bool(batch)

    def attempt(self) -> float:
        """Try to write what was taken. Return 0.0 if that is done, or the seconds to wait before the next attempt.

        The first attempt finds the end of an earlier master's files.
        """
        stall_s, self._stall_s = self._stall_s, 0.0
        self._given_up.wait(stall_s)
        for file, lines in self._lines.items():
            try:
                if lines or self._begins:
                    file.append(lines)
            except OSError as error:
                self._fails(file, error)
                pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
                return pause
        if self._failing is not None:
            log.warning("events and metrics are written again")
            self._failing = None
            self._written(-1, False)
        self._tell()
        return 0.0

    def _fails(self, file: LineFile, error: OSError) -> None:
        if self._failing is None:
            log.warning("%s cannot be written, and is tried again: %s", file.path, error)
            self._failing = (time.monotonic(), error)
            self._written(-1, True)

    def _tell(self) -> None:
        for news in self._batch:
            if isinstance(news, Event):
                self._observers.broadcast("event", event=news)
        lines = tuple(news for news in self._batch if isinstance(news, StepMetrics))
        if lines:
            self._observers.broadcast("steps_finished", metrics=lines)
        if lines or self._begins:
            self._written(self._metrics.last, False)
        self._begins, self._batch, self._taken = False, [], 0
