"""Send a request that takes a while to a running job, and wait for its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rolemesh.api.observer import Event
from rolemesh_durable.control.client import BEYOND, ControlClient, MasterGoneError

__all__ = ["Request", "ask"]

LOOK_S = 0.1
AGAIN_S = 2.0
"""Seconds without a new event of the master after which the request is repeated, because it may be another master."""


class Request:
    """Base of requests that take a while. It knows the events that belong to the request."""

    def send(self, client: ControlClient) -> Event | None:
        """Send the request. Return an event if that is all: it is the outcome. Raises `RefusedError`."""
        raise NotImplementedError

    def is_accepted(self, event: Event) -> bool:
        """Return whether the event accepts the request."""
        return False

    def is_outcome(self, accepted: Event, event: Event) -> bool:
        """Return whether the event is the outcome of the request that `accepted` accepts."""
        return False

    def progress(self, event: Event) -> None:
        """Take an event between the two."""


def _wait() -> None:
    """The master is silent, and somebody waits for the next one."""


def ask(
    run_dir: Path, request: Request, over: Callable[[], bool], *, silent: Callable[[], None] = _wait, wait: bool = True
) -> Event | None:
    """Return the event with the outcome, or with `wait` false the event that accepts the request.

    Returns None if `over` says that the job has ended. The request is repeated until it is journalled, so the death of
    a master does not lose it. `silent` is called when the master does not answer; it raises an error to give up. Raises
    `RefusedError` if the master refuses the request.
    """
    accepted: Event | None = None
    seen, asked_at = -1, float("-inf")
    with ControlClient(run_dir) as client:
        while not over():
            try:
                seen = client.watch(BEYOND, BEYOND).event if seen < 0 else seen
                if accepted is None and time.monotonic() > asked_at + AGAIN_S:
                    asked_at = time.monotonic()
                    if (answer := request.send(client)) is not None:
                        return answer
                update = client.watch(event=seen, step=BEYOND)
            except MasterGoneError:
                silent()
                time.sleep(LOOK_S)
                continue
            for event in update.events:
                seen = event.seq
                if accepted is None:
                    accepted = event if request.is_accepted(event) else None
                    if accepted is not None and not wait:
                        return accepted
                elif request.is_outcome(accepted, event):
                    return event
                else:
                    request.progress(event)
            time.sleep(LOOK_S)
    return None
