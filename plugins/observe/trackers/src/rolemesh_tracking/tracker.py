"""The base class of trackers: it decides what is sent and when, and outlives restarts and services that are away."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from rolemesh.api.observer import Event, JobStatus, Missed, Observer, RunInfo, StepMetrics
from rolemesh.hookspecs import hookimpl
from rolemesh.kinds.offered import need
from rolemesh_tracking.config import Plain, config
from rolemesh_tracking.cursor import FOLDER, Cursor, read_cursor, write_cursor
from rolemesh_tracking.lines import Line, Note, flat, note
from rolemesh_tracking.options import TrackerOptions
from rolemesh_tracking.reading import unsent

__all__ = ["Refused", "Tracker"]

log = logging.getLogger("rolemesh.tracking")

MOST_WAITING = 4096
"""Maximum number of lines and notes in memory. Beyond it they are read from the run's files."""
BATCH = 1000
"""Maximum number of lines and notes of one sending."""
ERROR_CHARACTERS = 300
PAUSES_S = (2.0, 60.0)
"""First and longest pause after a failed sending. Each one is twice as long as the one before."""


class Refused(Exception):
    """The service will never take these lines and notes, whatever the reason."""


class Tracker(Observer, ABC):
    """Sends the metrics and the important events of a job to a service, each once and in order.

    A subclass has `service` and three methods, which run in the observer's thread. If one raises, the log says so once,
    and the tracker tries again after a pause. It reads what the service did not take from the run's files. `now`
    (seconds of any clock) is for tests.

    A file in the run's folder says how far the tracker has got, so a restarted master continues there. If the master is
    killed between a sending and that file, the step is sent again, unless `open` returns it.
    """

    Options = TrackerOptions
    service: ClassVar[str]
    """Name of the service, in messages and of the file in the run's folder."""
    client: ClassVar[str] = ""
    """The module that the extra `service` of ``rolemesh-trackers`` brings."""

    def __init__(self, options: Any, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options)
        if self.client:
            need("observers", self.service, self.client)
        self._now = now
        self._run: RunInfo | None = None
        self._forget()

    # -------------------------------------------------------------------------------------------- what a subclass has

    @abstractmethod
    def open(self, run: RunInfo, known: Cursor) -> tuple[str, int]:
        """Begin the run at the service, or continue the one that it calls ``known.run`` ("" for a new run).

        Returns the service's name for the run, and the newest step that it has (-1 for none, or if it is unknown).
        """

    @abstractmethod
    def send(self, lines: Sequence[Line], notes: Sequence[Note]) -> None:
        """Send lines and notes, each by ascending number, and return after the service has them.

        Raises `Refused` if it will never take them. Any other exception leads to another attempt.
        """

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run at the service. `status` is done, failed or interrupted."""

    def name(self, run: RunInfo) -> str:
        """Return the run's name for users."""
        name: str = self.options.run or run.name
        return name

    @staticmethod
    def config(run: RunInfo) -> dict[str, Plain]:
        """Return the job file with keys like ``roles.trainer.size``, without secrets."""
        return config(Path(run.run_dir))

    # ---------------------------------------------------------------------------------------------------------- hooks

    @hookimpl
    def job_started(self, run: RunInfo) -> str:
        """Continue where an earlier instance ended."""
        self._close("interrupted")
        self._forget()
        self._run = run
        self._cursor = read_cursor(self._file(run))
        self._behind = True
        return self._advance()

    @hookimpl
    def steps_finished(self, metrics: tuple[StepMetrics, ...]) -> str:
        """Send the lines, at most once per interval."""
        return self._take(flat(line, self.options.metrics) for line in metrics)

    @hookimpl
    def event(self, event: Event) -> str:
        """Send the event if it is important."""
        return self._take(filter(None, [note(event, self._step)]))

    @hookimpl
    def status(self, status: JobStatus) -> str:
        """Send what waits."""
        return self._advance()

    @hookimpl
    def missed(self, missed: Missed) -> str:
        """Read the missed lines and events from the run's files."""
        self._behind = True
        return self._advance()

    @hookimpl
    def job_ended(self, result: dict[str, Any]) -> None:
        """Send what waits, and end the run."""
        self._advance(last=True)
        if self._problem:
            log.warning("the tracker %s has not sent all metrics of this job; metrics.jsonl has them", self.service)
        self._close(str(result.get("status", "done")))

    # -------------------------------------------------------------------------------------------------------- sending

    def _forget(self) -> None:
        self._cursor = Cursor()
        self._step = -1
        self._waiting: list[Line | Note] = []
        self._opened = self._behind = False
        self._problem = self._refused = ""
        self._due = float("-inf")
        self._pause = PAUSES_S[0]

    def _file(self, run: RunInfo) -> Path:
        return Path(run.run_dir, FOLDER, f"{self.service}.json")

    def _take(self, found: Iterable[Line | Note]) -> str:
        for each in found:
            self._waiting.append(each)
            self._step = max(self._step, each.step)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.clear()
            self._behind = True
        return self._advance()

    def _advance(self, last: bool = False) -> str:
        """Send what waits, if it is time. Return the problem that users should see, "" without one: an error is logged,
        and no reason to raise."""
        if self._run is None or (self._now() < self._due and not last):
            return self._problem or self._refused
        try:
            self._deliver(self._run)
        except Exception as error:
            problem = f"gets no metrics through; it tries again while the job runs: {_brief(error)}"
            if not self._problem:
                log.warning("the tracker %s %s", self.service, problem)
            self._problem = problem
            self._due = self._now() + self._pause
            self._pause = min(2 * self._pause, PAUSES_S[1])
            return problem
        if self._problem:
            log.info("the tracker %s gets metrics through again", self.service)
        self._problem, self._pause = "", PAUSES_S[0]
        self._due = self._now() + self.options.interval_s
        return self._refused

    def _deliver(self, run: RunInfo) -> None:
        if not self._opened:
            self._cursor.run, step = self.open(run, self._cursor)
            self._cursor.step = max(self._cursor.step, step)
            self._opened = True
            write_cursor(self._file(run), self._cursor)
        if self._behind:
            for batch in _batches(unsent(Path(run.run_dir), self._cursor, self.options.metrics)):
                self._send(run, batch)
            self._behind = False
        for batch in _batches(self._waiting):
            self._send(run, batch)
        self._waiting.clear()

    def _send(self, run: RunInfo, batch: Sequence[Line | Note]) -> None:
        lines = [each for each in batch if isinstance(each, Line) and each.step > self._cursor.step]
        notes = [each for each in batch if isinstance(each, Note) and each.seq > self._cursor.event]
        if not (lines or notes):
            return
        try:
            self.send(lines, notes)
        except Refused as error:
            if not self._refused:
                what = f"leaves out metrics up to step {self._step}, which the service refuses: {_brief(error)}"
                log.warning("the tracker %s %s", self.service, what)
                self._refused = what
        self._cursor.step = max([self._cursor.step, *(each.step for each in lines)])
        self._step = max(self._step, self._cursor.step)
        self._cursor.event = max([self._cursor.event, *(each.seq for each in notes)])
        write_cursor(self._file(run), self._cursor)

    def _close(self, status: str) -> None:
        if self._opened:
            self._opened = False
            try:
                self.close(status)
            except Exception as error:
                log.warning("the tracker %s did not end the run: %s", self.service, _brief(error))
        self._run = None


def _batches(found: Iterable[Line | Note]) -> Iterator[list[Line | Note]]:
    each = iter(found)
    while batch := list(islice(each, BATCH)):
        yield batch


def _brief(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:ERROR_CHARACTERS] if lines else ''}"
