"""Send a request that takes a while to a running job, and wait for its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rolemesh.api.observer import Event
from rolemesh_durable.control.client import BEYOND, ControlClient, MasterGoneError

__all__ = ["ask"]

LOOK_S = 0.1
AGAIN_S = 2.0
"""Seconds without a new event of the master after which the request is repeated, because it may be another master."""


def ask(
    run_dir: Path,
    send: Callable[[ControlClient], Event | None],
    is_it: Callable[[Event], bool],
    comes_of: Callable[[Event, Event], bool],
    over: Callable[[], bool],
    *,
    wait: bool = True,
    tell: Callable[[Event], None] = lambda event: None,
) -> Event | None:
    """Return the event with the outcome: the first for which `comes_of(asked, event)` holds, or with `wait` false the
    event that accepts the request. If `send` returns something because there is nothing to request, return that. Return
    None if `over` says that the job has ended.

    `is_it` recognizes the event that accepts the request; `tell` receives all later ones. The request is repeated until
    it is journalled, so the death of a master does not lose it. Raises `RefusedError` if it is refused, and the errors
    of `over`, which is called when the master does not answer.
    """
    asked: Event | None = None
    seen, asked_at = -1, float("-inf")
    with ControlClient(run_dir) as client:
        while not over():
            try:
                seen = client.watch(BEYOND, BEYOND).event if seen < 0 else seen
                if asked is None and time.monotonic() > asked_at + AGAIN_S:
                    asked_at = time.monotonic()
                    if (answer := send(client)) is not None:
                        return answer
                update = client.watch(event=seen, step=BEYOND)
            except MasterGoneError:
                time.sleep(LOOK_S)
                continue
            for event in update.events:
                seen = event.seq
                if asked is None and is_it(event):
                    asked = event
                    if not wait:
                        return event
                elif asked is not None and comes_of(asked, event):
                    return event
                elif asked is not None:
                    tell(event)
            time.sleep(LOOK_S)
    return None
