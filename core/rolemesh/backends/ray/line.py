"""Jobs that wait for room on a Ray: by priority, then by who came first. The line is in Ray's own key-value store.

Who waits says so every second; an entry that has not been renewed for `STALE_S` is that of a driver that is gone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

import msgspec
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from rolemesh.backends.ray.names import NAMESPACE

__all__ = ["Line", "Place", "ahead", "jobs_with_bundles"]

STALE_S = 5.0
_PREFIX = b"rolemesh-line:"


class Place(msgspec.Struct, frozen=True):
    """A job in line. Times are seconds since the epoch, by the clock of its driver."""

    job: str
    priority: int
    since: float
    beat: float
    ticket: str


def ahead(places: Iterable[Place], mine: Place, now: float) -> list[Place]:
    """Those whose turn it is before `mine`, the first one first."""
    before = [
        place
        for place in places
        if place.ticket != mine.ticket
        and place.beat > now - STALE_S
        and (-place.priority, place.since, place.ticket) < (-mine.priority, mine.since, mine.ticket)
    ]
    return sorted(before, key=lambda place: (-place.priority, place.since, place.ticket))


class Line:
    """One job's place in the line, until `leave`."""

    def __init__(self, job: str, priority: int) -> None:
        now = time.time()
        self._mine = Place(job, priority, now, now, secrets.token_hex(4))
        self.ahead()

    def ahead(self) -> list[Place]:
        """Renew the place; who is before it."""
        now = time.time()
        self._mine = msgspec.structs.replace(self._mine, beat=now)
        internal_kv._internal_kv_put(self._key, msgspec.msgpack.encode(self._mine), namespace=NAMESPACE)
        return ahead(self._places(), self._mine, now)

    def leave(self) -> None:
        """The place is free: the next one's turn comes."""
        internal_kv._internal_kv_del(self._key, namespace=NAMESPACE)

    @property
    def _key(self) -> bytes:
        return _PREFIX + self._mine.ticket.encode()

    @staticmethod
    def _places() -> list[Place]:
        found = []
        for key in internal_kv._internal_kv_list(_PREFIX, namespace=NAMESPACE):
            data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
            if data is not None:
                found.append(msgspec.msgpack.decode(data, type=Place))
        return found


def jobs_with_bundles() -> list[str]:
    """The jobs that have something reserved on this Ray."""
    head = "rolemesh-bundles-"
    tables = placement_group_table().values()
    names = [table["name"] for table in tables if table["state"] != "REMOVED" and table["name"].startswith(head)]
    return sorted({name.removeprefix(head).rpartition(":")[0] for name in names})
