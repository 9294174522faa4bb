"""The requests of clients for another layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rolemesh.api.observer import Event, JobStatus
from rolemesh_durable.control.asking import ask
from rolemesh_durable.control.client import ControlClient

__all__ = ["DrainNode", "ResizeJob", "resize"]


class ResizeJob(msgspec.Struct, frozen=True, tag=True):
    """Request other numbers of ranks, by role. Events show the outcome."""

    sizes: dict[str, int]
    reason: str


class DrainNode(msgspec.Struct, frozen=True, tag=True):
    """Request that a node becomes free of ranks, or with `back` take it back.

    The node goes away in `notice_s` seconds; 0: the time is unknown.
    """

    node: str
    reason: str
    notice_s: float = 0.0
    back: bool = False


def resize(
    run_dir: Path, wanted: dict[str, int], reason: str, over: Callable[[], bool], *, wait: bool = True
) -> Event | None:
    """Return the event with the outcome: ``resized``, ``resize_refused``, with `wait` false ``resize_asked``, or
    ``had`` (not in the journal) if the roles already have these world sizes. See `ask`; `reason` must be unique."""

    def send(client: ControlClient) -> Event | None:
        has = _has(client.ask(ResizeJob(wanted, reason)).status, wanted)
        return Event(0, 0, 0.0, "had", {"sizes": wanted}) if has else None

    def is_it(event: Event) -> bool:
        return event.kind == "resize_asked" and event.data["reason"] == reason

    def comes_of(asked: Event, event: Event) -> bool:
        return event.kind in ("resized", "resize_refused") and event.data["number"] == asked.data["number"]

    return ask(run_dir, send, is_it, comes_of, over, wait=wait)


def _has(status: JobStatus, wanted: Mapping[str, int]) -> bool:
    sizes = Counter(rank.role for rank in status.ranks)
    return not status.resizing and all(sizes[role] == size for role, size in wanted.items())
