"""Following a job from outside its master: news go to observers until the job has ended.

`rolemesh run` (as the job's owner), `rolemesh attach` and `rolemesh stop` all wait here.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from rolemesh.builtin.jsonl import read_metrics
from rolemesh.control import ControlClient, MasterGoneError, Update
from rolemesh.errors import RolemeshError
from rolemesh.runs import METRICS_FILE, Run

__all__ = ["ANSWER_S", "PATIENCE_S", "Relay", "follow"]

ANSWER_S = 1.0
"""How long one question waits for its answer; a master that ends in between never gives one."""
PATIENCE_S = 10.0
"""How long a master may be silent before it is given up."""


class Relay(Protocol):
    """Whoever passes a hook on to observers: `rolemesh.plugins.manager.JobPlugins`."""

    def broadcast(self, hook: str, /, **kwargs: Any) -> object:
        """Call `hook` of every observer."""


def follow(
    run_dir: str | Path,
    observers: Relay,
    *,
    owner: bool,
    interval_s: float = 0.25,
    client: ControlClient | None = None,
    patience_s: float = PATIENCE_S,
) -> dict[str, Any] | None:
    """Pass events, metrics and status of the job in `run_dir` to `observers` until it has ended; returns its result.

    Observers get `event`, `steps_finished` and `status` as they come (each event and step once, in order; what the
    master no longer remembers, or said when nobody asked, comes from the run's files) and `job_ended` at the end.
    `job_started` is the caller's. With `owner`, the job lives only while this runs. `client` (which stays open) should
    have a short time-out, see `ANSWER_S`. Returns None if the master falls silent for `patience_s` without a result.
    """
    session = _Session(Run(run_dir), observers)
    mine: ControlClient | None = None
    last_answer = time.monotonic()
    try:
        while (result := session.run.result()) is None:
            try:
                asked = client or mine
                if asked is None:
                    asked = mine = ControlClient(run_dir, ANSWER_S)
                update = asked.watch(session.event, session.step, owner=owner)
            except MasterGoneError:
                # A master that was started again listens elsewhere, so read control.json anew.
                client = None
                if mine is not None:
                    mine.close()
                    mine = None
                if time.monotonic() - last_answer > patience_s:
                    return None
            else:
                last_answer = time.monotonic()
                session.take(update)
            time.sleep(interval_s)
    finally:
        if mine is not None:
            mine.close()
    session.finish(result)
    return result


class _Session:
    """What has been passed on so far."""

    def __init__(self, run: Run, observers: Relay) -> None:
        self.run = run
        self.event = 0
        self.step = -1
        self._observers = observers

    def take(self, update: Update) -> None:
        for event in update.events:
            if event.seq > self.event:
                self.event = event.seq
                self._observers.broadcast("event", event=event)
        lines = tuple(line for line in update.lines if line.step > self.step)
        if lines and lines[0].step - lines[0].steps > self.step:
            # The master remembers the latest lines only.
            first = lines[0].step
            self._pass_on(tuple(line for line in self._written() if line.step < first))
        self._pass_on(lines)
        self._observers.broadcast("status", status=update.status)

    def finish(self, result: dict[str, Any]) -> None:
        """The last news came after the last question."""
        try:
            with self.run.store() as store:
                events = store.events(self.event)
        except RolemeshError:
            # The result is known; that the journal's last lines cannot be shown must not hide it.
            events = []
        for event in events:
            self._observers.broadcast("event", event=event)
        self._pass_on(self._written())
        self._observers.broadcast("job_ended", result=result)

    def _written(self) -> tuple[Any, ...]:
        return tuple(read_metrics(self.run.path / METRICS_FILE, self.step))

    def _pass_on(self, lines: tuple[Any, ...]) -> None:
        if lines:
            self.step = lines[-1].step
            self._observers.broadcast("steps_finished", metrics=lines)
