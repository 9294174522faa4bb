"""Jobs that wait for room on a Ray: by priority, then by who came first. The line is in Ray's own key-value store.

Who waits says so every second; an entry that has not been renewed for `STALE_S` is that of a driver that is gone.
Whether it has been is seen by whoever waits behind it, by its own clock: those of two machines are not compared.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable

import msgspec
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from rolemesh_ray.names import NAMESPACE

__all__ = ["Line", "Living", "Place", "ahead", "jobs_with_bundles"]

STALE_S = 5.0
_PREFIX = b"rolemesh-line:"


class Place(msgspec.Struct, frozen=True):
    """A job in line, `since` (seconds since 1970, by its driver's clock); `beat` counts how often that has said so."""

    job: str
    priority: int
    since: float
    beat: int
    ticket: str


def ahead(places: Iterable[Place], mine: Place) -> list[Place]:
    """Those whose turn it is before `mine`, the first one first."""
    return sorted((p for p in places if p.ticket != mine.ticket and _order(p) < _order(mine)), key=_order)


def _order(place: Place) -> tuple[int, float, str]:
    return -place.priority, place.since, place.ticket


class Living:
    """Tells the places whose drivers live from those that are left over."""

    def __init__(self) -> None:
        self._renewed: dict[str, tuple[int, float]] = {}

    def among(self, places: Iterable[Place], now: float) -> list[Place]:
        """Those of `places` that have been renewed within `STALE_S`, or are seen for the first time."""
        known, self._renewed = self._renewed, {}
        found = []
        for place in places:
            beat, since = known.get(place.ticket, (-1, now))
            self._renewed[place.ticket] = (place.beat, since if beat == place.beat else now)
            if now <= self._renewed[place.ticket][1] + STALE_S:
                found.append(place)
        return found


class Line:
    """One job's place in the line, until `leave`."""

    def __init__(self, job: str, priority: int) -> None:
        self._mine = Place(job, priority, time.time(), 0, secrets.token_hex(4))
        self._living = Living()
        self.ahead()

    def ahead(self) -> list[Place]:
        """Renew the place; who is before it."""
        self._mine = msgspec.structs.replace(self._mine, beat=self._mine.beat + 1)
        internal_kv._internal_kv_put(self._key, msgspec.msgpack.encode(self._mine), namespace=NAMESPACE)
        return ahead(self._living.among(self._places(), time.monotonic()), self._mine)

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
