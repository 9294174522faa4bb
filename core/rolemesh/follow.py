"""Following a job from outside its master: news go to observers until the job has ended.

`rolemesh run` (as the job's owner), `rolemesh attach` and `rolemesh stop` all wait here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rolemesh.builtin.jsonl import read_metrics
from rolemesh.control import ControlClient, MasterGoneError, Update
from rolemesh.errors import RolemeshError
from rolemesh.plugins.background import Background
from rolemesh.runs import METRICS_FILE, Run

__all__ = ["ANSWER_S", "DRAIN_S", "PATIENCE_S", "Relay", "follow"]

ANSWER_S = 1.0
"""How long one question waits for its answer; a master that ends in between never gives one."""
DRAIN_S = 60.0
"""How long observers may take, after the job's end, for what they have not been told yet."""
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
    patience_s: float = PATIENCE_S,
    alive: Callable[[], bool] = lambda: False,
    interrupted: Callable[[], None] | None = None,
) -> dict[str, Any] | None:
    """Pass events, metrics and status of the job in `run_dir` to `observers` until it has ended; returns its result.

    Observers get `event`, `steps_finished` and `status` as they come (each event and step once, in order; what the
    master no longer remembers, or said when nobody asked, comes from the run's files) and `job_ended` at the end.
    `job_started` is the caller's. With `owner`, the job lives only while this runs. At the first Ctrl-C `interrupted`
    is called, and following goes on; at the next, or without it, `KeyboardInterrupt` is raised. Returns None if the
    master is silent for `patience_s` without a result, and is not `alive`: who looks after it may say that it is, or
    that it is being started again, which takes long where a machine is busy.
    """
    relay = Background(observers)
    session = _Session(Run(run_dir), relay, owner)
    try:
        while True:
            try:
                result = session.run_until_end(interval_s, patience_s, alive)
                break
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                call, interrupted = interrupted, None
                call()
    finally:
        session.close()
        relay.close()
    relay.wait(DRAIN_S)
    return result


class _Session:
    """What has been passed on so far, and the connection that the rest comes over."""

    def __init__(self, run: Run, observers: Relay, owner: bool) -> None:
        self._run = run
        self._observers = observers
        self._owner = owner
        self._client = ControlClient(run.path, ANSWER_S)
        self._event = 0
        self._step = -1

    def run_until_end(self, interval_s: float, patience_s: float, alive: Callable[[], bool]) -> dict[str, Any] | None:
        """Ask, pass on, wait, until there is a result or the master is given up."""
        last_answer, given_up = time.monotonic(), False
        while (result := self._run.result()) is None and not given_up:
            try:
                update = self._client.watch(self._event, self._step, owner=self._owner)
            except MasterGoneError:
                given_up = time.monotonic() - last_answer > patience_s and not alive()
            else:
                last_answer = time.monotonic()
                self._take(update)
            time.sleep(interval_s)
        if result is not None:
            self._finish(result)
        return result

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _take(self, update: Update) -> None:
        for event in update.events:
            if event.seq > self._event:
                self._event = event.seq
                self._observers.broadcast("event", event=event)
        lines = tuple(line for line in update.lines if line.step > self._step)
        if lines and lines[0].step - lines[0].steps > self._step:
            # The master remembers the latest lines only.
            first = lines[0].step
            self._pass_on(tuple(line for line in self._written() if line.step < first))
        self._pass_on(lines)
        self._observers.broadcast("status", status=update.status)

    def _finish(self, result: dict[str, Any]) -> None:
        """The last news came after the last question."""
        try:
            with self._run.store() as store:
                events = store.events(self._event)
        except RolemeshError:
            # The result is known; that the journal's last lines cannot be shown must not hide it.
            events = []
        for event in events:
            self._observers.broadcast("event", event=event)
        self._pass_on(self._written())
        self._observers.broadcast("job_ended", result=result)

    def _written(self) -> tuple[Any, ...]:
        return tuple(read_metrics(self._run.path / METRICS_FILE, self._step))

    def _pass_on(self, lines: tuple[Any, ...]) -> None:
        if lines:
            self._step = lines[-1].step
            self._observers.broadcast("steps_finished", metrics=lines)
