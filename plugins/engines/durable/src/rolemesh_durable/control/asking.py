"""Asking a running job for something that takes a while, until it is known what has come of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rolemesh.api.observer import Event
from rolemesh_durable.control.client import BEYOND, ControlClient, MasterGoneError

__all__ = ["ask"]

LOOK_S = 0.1
AGAIN_S = 2.0
"""A master that has journalled nothing for so long is asked again: it may be another one."""


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
    """The event that says what has come of it: the first for which `comes_of(asked, event)` holds, or with `wait` false
    that it is asked for; or what `send` answers if it has nothing to ask for. None if `over` says that the job has
    ended before. `is_it` knows the event that it was asked for, and `tell` hears of all later ones.

    It is asked for until that is journalled, so that no death of a master loses it. Raises `RefusedError` if it cannot
    be, and what `over` raises, which is asked when the master does not answer.
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
