"""The queue of jobs that wait for room on a Ray cluster, by priority and then by arrival. It is stored in Ray's
key-value store.

A waiting driver renews its entry every second. An entry that was not renewed for `STALE_S` seconds belongs to a dead
driver. The next driver in the queue measures that with its own clock; clocks of two machines are not compared.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

import msgspec
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from rolemesh_ray.names import NAMESPACE

__all__ = ["Living", "QueueEntry", "QueuePlace", "ahead", "jobs_with_bundles"]

STALE_S = 5.0
_PREFIX = b"rolemesh-line:"


class QueuePlace(msgspec.Struct, frozen=True):
    """A job in the queue. `since` is in seconds since 1970 by its driver's clock; `beat` counts the renewals."""

    job: str
    priority: int
    since: float
    beat: int
    ticket: str


def ahead(places: Iterable[QueuePlace], mine: QueuePlace) -> list[QueuePlace]:
    """Return the entries before `mine`, the first one first."""
    return sorted((p for p in places if p.ticket != mine.ticket and _order(p) < _order(mine)), key=_order)


def _order(place: QueuePlace) -> tuple[int, float, str]:
    return -place.priority, place.since, place.ticket


class Living:
    """Tells the entries of living drivers from those of dead ones."""

    def __init__(self) -> None:
        self._renewed: dict[str, tuple[int, float]] = {}

    def among(self, places: Iterable[QueuePlace], now: float) -> list[QueuePlace]:
        """Return those of `places` that were renewed within `STALE_S` seconds or are seen for the first time."""
        known, self._renewed = self._renewed, {}
        found = []
        for place in places:
            beat, since = known.get(place.ticket, (-1, now))
            self._renewed[place.ticket] = (place.beat, since if beat == place.beat else now)
            if now <= self._renewed[place.ticket][1] + STALE_S:
                found.append(place)
        return found


class QueueEntry:
    """A job's entry in the queue, until `leave`."""

    def __init__(self, job: str, priority: int) -> None:
        self._mine = QueuePlace(job, priority, time.time(), 0, secrets.token_hex(4))
        self._living = Living()
        self.ahead()

    def ahead(self) -> list[QueuePlace]:
        """Renew the entry, and return the entries before it."""
        self._mine = msgspec.structs.replace(self._mine, beat=self._mine.beat + 1)
        internal_kv._internal_kv_put(self._key, msgspec.msgpack.encode(self._mine), namespace=NAMESPACE)
        return ahead(self._living.among(self._places(), time.monotonic()), self._mine)

    def leave(self) -> None:
        """Remove the entry, so that the next job gets its turn."""
        internal_kv._internal_kv_del(self._key, namespace=NAMESPACE)

    @property
    def _key(self) -> bytes:
        return _PREFIX + self._mine.ticket.encode()

    @staticmethod
    def _places() -> list[QueuePlace]:
        found = []
        for key in internal_kv._internal_kv_list(_PREFIX, namespace=NAMESPACE):
            data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
            if data is not None:
                found.append(msgspec.msgpack.decode(data, type=QueuePlace))
        return found


def jobs_with_bundles() -> list[str]:
    """Return the jobs that have reservations on this Ray cluster."""
    head = "rolemesh-bundles-"
    tables = placement_group_table().values()
    names = [table["name"] for table in tables if table["state"] != "REMOVED" and table["name"].startswith(head)]
    return sorted({name.removeprefix(head).rpartition(":")[0] for name in names})
