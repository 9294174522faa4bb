"""Asking a running job for other numbers of ranks, until it is known what has come of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from rolemesh.api.observer import Event, JobStatus
from rolemesh_durable.control.client import BEYOND, ControlClient, MasterGoneError

__all__ = ["resize"]

LOOK_S = 0.1
AGAIN_S = 2.0
"""A master that has journalled nothing for so long is asked again: it may be another one."""


def resize(
    run_dir: Path, wanted: dict[str, int], reason: str, over: Callable[[], bool], *, wait: bool = True
) -> Event | None:
    """The event that says what has come of it: ``resized``, ``resize_refused``, with `wait` false ``resize_asked``, or
    ``had`` (of no journal) if the roles have these world sizes. None if `over` says that the job has ended before.

    It is asked for until it is journalled, so that no death of a master loses it; `reason` must be nobody else's.
    Raises `RefusedError` if it cannot be, and what `over` raises, which is asked when the master does not answer.
    """
    number, seen, asked_at = 0, -1, float("-inf")
    with ControlClient(run_dir) as client:
        while not over():
            try:
                seen = client.watch(BEYOND, BEYOND).event if seen < 0 else seen
                if not number and time.monotonic() > asked_at + AGAIN_S:
                    asked_at = time.monotonic()
                    if _has(client.resize(wanted, reason).status, wanted):
                        return Event(0, 0, 0.0, "had", {"sizes": wanted})
                update = client.watch(event=seen, step=BEYOND)
            except MasterGoneError:
                time.sleep(LOOK_S)
                continue
            for event in update.events:
                seen = event.seq
                if event.kind == "resize_asked" and event.data["reason"] == reason:
                    number = event.data["number"]
                    if not wait:
                        return event
                elif event.kind in ("resized", "resize_refused") and event.data["number"] == number:
                    return event
            time.sleep(LOOK_S)
    return None


def _has(status: JobStatus, wanted: Mapping[str, int]) -> bool:
    sizes = Counter(rank.role for rank in status.ranks)
    return not status.resizing and all(sizes[role] == size for role, size in wanted.items())
