"""Follow a job from outside its master: pass news to observers until the job has ended.

`rolemesh run` (as the job's owner) and `rolemesh attach` wait here. Between two requests to the
master, at most a page of news is read and passed on, however long the job is.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.errors import RolemeshError
from rolemesh_durable.control import history
from rolemesh_durable.control.client import BEYOND, ControlClient, MasterGoneError, Update
from rolemesh_durable.control.living import LivingRun
from rolemesh_runtime.background import Background, Teller
from rolemesh_runtime.looking import Looking

__all__ = ["ANSWER_S", "DRAIN_S", "PATIENCE_S", "Relay", "follow"]

log = logging.getLogger("rolemesh_durable.control.watch")

ANSWER_S = 1.0
"""Seconds that one request waits for its answer. A master that ends meanwhile never answers."""
DRAIN_S = 60.0
"""Maximum seconds after the job's end for observers to receive the remaining news."""
PATIENCE_S = 10.0
"""Seconds of silence after which a master is given up."""
SILENT_S = 10.0
"""Seconds after which a run's folder that does not answer is reported."""


class Relay(Protocol):
    """The observers, each of which gets its own calls: `rolemesh.plugins.manager.JobPlugins`."""

    def each(self) -> Mapping[str, Teller]:
        """Return the function of each observer, by the name that is shown to users."""


def follow(
    run_dir: str | Path,
    observers: Relay,
    *,
    owner: bool,
    latest: int | None = None,
    interval_s: float = 0.25,
    patience_s: float = PATIENCE_S,
    alive: Callable[[], bool] = lambda: False,
    interrupted: Callable[[], None] | None = None,
) -> dict[str, Any] | None:
    """Pass events, metrics and status of the job in `run_dir` to `observers` until it has ended; returns its result.

    Observers get `event`, `steps_finished` and `status` as they come, and `job_ended` at the end; the caller calls
    `job_started`. Each event and step comes once, in order. Those that the master no longer remembers come from the
    run's files. With `latest`, only this many earlier events and steps come. With `owner`, the job lives only while
    this runs. At the first Ctrl-C the function calls `interrupted` and continues; at the next, or without
    `interrupted`, it raises `KeyboardInterrupt`. It returns None if the master is silent for `patience_s` without a
    result, and is not `alive`. `alive` may return True while a backend restarts the master, which takes long on a busy
    machine.
    """
    relay = Background(observers)
    gc.freeze()  # lines of quick steps are many, and would have all that was imported looked through
    session = _Session(LivingRun(run_dir), relay, owner, latest)
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
        gc.unfreeze()
        session.close()
        relay.close()
    deadline = time.monotonic() + DRAIN_S
    while not (relay.wait(0.1) or relay.hang(DRAIN_S)) and time.monotonic() < deadline:
        pass
    for untold in relay.give_up():
        log.warning(untold)
    return result


class _Session:
    """The position of the news so far, and the connection for further ones."""

    def __init__(self, run: LivingRun, observers: Background, owner: bool, latest: int | None) -> None:
        self._run = run
        self._observers = observers
        self._owner = owner
        self._latest = latest
        self._ended = self._warned = False
        self._client = ControlClient(run.path, ANSWER_S)
        self._event, self._step = (0, -1) if latest is None else (BEYOND, BEYOND)

    def run_until_end(self, interval_s: float, patience_s: float, alive: Callable[[], bool]) -> dict[str, Any] | None:
        """Ask, pass on and wait, until there is a result or the master is given up."""
        heard = time.monotonic()
        with closing(Looking(self._run.result, interval_s)) as ending:
            ending.look_again(ANSWER_S)
            while ending.found is None:
                behind = False
                try:
                    update = self._client.watch(self._event, self._step, owner=self._owner)
                except MasterGoneError:
                    if time.monotonic() - heard > patience_s and not alive():
                        break
                else:
                    heard = time.monotonic()
                    behind = self._take(update)
                self._warn(ending)
                if not behind:
                    ending.wait(interval_s)
            ending.look_again(ANSWER_S)
        if ending.found is not None:
            self._finish(ending.found)
        elif ending.error is not None:
            raise ending.error
        return ending.found

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _warn(self, ending: Looking[dict[str, Any]]) -> None:
        """Warn once of a folder that cannot be read: the job may go on, so this goes on, too."""
        late = f"{self._run.path} has not answered for {SILENT_S:g} s" if ending.silent_s > SILENT_S else ""
        if not self._warned and (trouble := str(ending.error or late)):
            self._warned = True
            log.warning("%s; the result is looked for until the folder can be read", trouble)

    def _take(self, update: Update) -> bool:
        """Pass a page of news on. Return whether more are ready."""
        before = self._event, self._step
        if self._event == BEYOND:
            self._begin(update.event, update.step)
        else:
            self._take_events(update)
            self._take_lines(update)
        self._observers.broadcast("status", status=update.status)
        return (self._event, self._step) != before and (self._event < update.event or self._step < update.step)

    def _begin(self, event: int, step: int) -> None:
        """The newest are `event` and `step`, or those in the files: begin a little before."""
        latest = self._latest or 0
        self._event = max(0, max(event, history.newest_event(self._run)) - latest)
        self._step = max(-1, max(step, history.newest_step(self._run)) - latest)

    def _take_events(self, update: Update) -> None:
        events = [event for event in update.events if event.seq > self._event]
        if events and events[0].seq > self._event + 1:
            # The master remembers the latest only.
            with suppress(RolemeshError):  # nobody has them any more: those that are remembered are shown
                events = next(history.events(self._run, self._event, events[0].seq - 1), events)
        self._tell(events)

    def _take_lines(self, update: Update) -> None:
        lines = [line for line in update.lines if line.step > self._step]
        if not lines and update.step > self._step:
            # The master remembers the latest only.
            with suppress(RolemeshError):  # they cannot be read now, and are asked for again
                lines = next(history.lines(self._run, self._step), lines)
        self._pass_on(lines)

    def _finish(self, result: dict[str, Any]) -> None:
        """Pass on the last news, which came after the last request."""
        self._ended = True
        if self._event == BEYOND:
            self._begin(0, -1)
        with suppress(RolemeshError):  # the result is known: that the last events cannot be shown must not hide it
            for events in history.events(self._run, self._event):
                self._tell(events)
            for lines in history.lines(self._run, self._step):
                self._pass_on(lines)
        self._observers.broadcast("job_ended", result=result)

    def _settle(self) -> None:
        """Let slow observers catch up, but return early enough that the owner of a job renews its lease."""
        if self._ended or not self._owner:
            self._observers.settle()

    def _tell(self, events: Sequence[Event]) -> None:
        self._settle()
        for event in events:
            self._event = event.seq
            self._observers.broadcast("event", event=event)

    def _pass_on(self, lines: Sequence[StepMetrics]) -> None:
        if lines:
            self._step = lines[-1].step
            self._settle()
            self._observers.broadcast("steps_finished", metrics=tuple(lines))
