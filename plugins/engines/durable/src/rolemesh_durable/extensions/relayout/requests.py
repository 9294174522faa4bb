"""The requests of clients for another layout."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import msgspec

from rolemesh.api.observer import Event, JobStatus
from rolemesh_durable.control.asking import Request
from rolemesh_durable.control.client import ControlClient, RefusedError

__all__ = ["LOOKING", "DrainNode", "ResizeJob", "ResizeRequest", "TryResize"]

LOOKING = "it looks for room"
"""The refusal of `TryResize` as long as the master does not know the answer."""
LOOK_S = 0.05
PATIENCE_S = 10.0
"""Seconds that a client waits for that answer."""


class ResizeJob(msgspec.Struct, frozen=True, tag=True):
    """Request other numbers of ranks, by role. Events show the outcome."""

    sizes: dict[str, int]
    reason: str


class TryResize(msgspec.Struct, frozen=True, tag=True):
    """Ask whether the job can have these numbers of ranks, by role, now. Nothing changes."""

    sizes: dict[str, int]


class DrainNode(msgspec.Struct, frozen=True, tag=True):
    """Request that a node becomes free of ranks, or with `back` take it back.

    The node goes away in `notice_s` seconds; 0: the time is unknown.
    """

    node: str
    reason: str
    notice_s: float = 0.0
    back: bool = False


class ResizeRequest(Request):
    """A resize, from its request to its outcome.

    The outcome is ``resized``, ``resize_refused``, or ``had`` (not in the journal) if the roles already have these
    world sizes. The event ``resize_asked`` accepts it.
    """

    def __init__(self, sizes: Mapping[str, int], reason: str) -> None:
        """`reason` must be unique: it identifies the request in the journal."""
        self._sizes, self._reason = dict(sizes), reason

    def refusal(self, client: ControlClient) -> str:
        """Return why the master would refuse the request now; "" if it would carry it out. Nothing changes.

        Raises `MasterGoneError`.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                client.ask(TryResize(self._sizes))
            except RefusedError as error:
                why = error.what.partition(" refuses: ")[2] or error.what
                if why != LOOKING or time.monotonic() > until:
                    return why
                time.sleep(LOOK_S)
            else:
                return ""

    def send(self, client: ControlClient) -> Event | None:
        """Send the request."""
        has = _has(client.ask(ResizeJob(self._sizes, self._reason)).status, self._sizes)
        return Event(0, 0, 0.0, "had", {"sizes": self._sizes}) if has else None

    def is_accepted(self, event: Event) -> bool:
        """Return whether the event has this reason."""
        return event.kind == "resize_asked" and event.data["reason"] == self._reason

    def is_outcome(self, accepted: Event, event: Event) -> bool:
        """Return whether the event ends the resize of this number."""
        return event.kind in ("resized", "resize_refused") and event.data["number"] == accepted.data["number"]


def _has(status: JobStatus, wanted: Mapping[str, int]) -> bool:
    sizes = Counter(rank.role for rank in status.ranks)
    return not status.resizing and all(sizes[role] == size for role, size in wanted.items())
