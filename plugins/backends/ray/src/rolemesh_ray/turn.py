"""A job's place in the queue of a Ray cluster. Ray's key-value store holds the queue, beside numbered turns.

To start, a driver writes the next turn, which succeeds for one driver only: one that has decided on an older state of
the queue decides again. No driver holds a lock, so a killed one blocks nobody.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group_table

from rolemesh.api.cluster import ClusterView
from rolemesh.placement import PlacementPlan
from rolemesh_ray.names import NAMESPACE
from rolemesh_ray.nodes import free_nodes, living_nodes
from rolemesh_ray.queue import Living, Plan, QueuePlace, ahead, aim, least, left, less, reason, spare, total
from rolemesh_runtime.user import user_name

__all__ = ["RayTurn", "free_room", "places", "room_to_grow"]

BEAT_S = 1.0
PLACES, TURNS = b"rolemesh-queue:", b"rolemesh-turn:"
BUNDLES = "rolemesh-bundles-"
NAMES = {"CPU": "cpu", "GPU": "gpu", "memory": "memory_gb"}


class RayTurn:
    """See `rolemesh_durable.backends.Turn`. A thread renews the entry until `leave`, whatever the driver waits for."""

    def __init__(self, job: str, priority: int, plan: Plan, lost: frozenset[str] = frozenset()) -> None:
        self._plan, self._lost = plan, lost
        self._living = Living()
        others = places()
        number = 1 + max([0, *_turns(), *(place.number for place in others)])  # turns count the starts
        self._mine = QueuePlace(job, user_name(), priority, number, secrets.token_hex(4))
        self._lock, self._left = threading.Lock(), threading.Event()
        self._put(wanted=aim({}, ahead(others, self._mine), living_nodes(lost), plan))
        threading.Thread(target=self._renew, name="queue", daemon=True).start()

    def look(self) -> tuple[PlacementPlan, ClusterView] | str:
        """See `Turn`."""
        turn = max(_turns(), default=0)  # before what the decision is based on
        found = places()
        living = self._living.among(found, time.monotonic())
        for dead in (place for place in found if place not in living and place.ticket != self._mine.ticket):
            _remove(dead)
        before = ahead(living, self._mine)
        wanted = aim(self._mine.wanted, before, living_nodes(self._lost), self._plan)
        if wanted != self._mine.wanted:
            self._put(wanted=wanted)
        held = _held()
        room = left(_free(self._lost, held), living, self._mine)
        plan = self._plan(room)
        if plan.unplaced:
            return reason(plan, before, {job: total(of) for job, of in held.items()})
        return (plan, room) if self._start(turn + 1, plan.bundles()) else "another job starts at this moment"

    def leave(self) -> None:
        """Remove the entry: the job has its resources, or does not want them any more."""
        with self._lock:
            self._left.set()
            _remove(self._mine)

    def _start(self, turn: int, bundles: dict[str, dict[str, float]]) -> bool:
        """Return whether this is the job that starts with this turn. Its bundles are in the queue before it does."""
        wanted = self._mine.wanted
        self._put(wanted=bundles, starts=True)
        taken = internal_kv._internal_kv_put(_turn(turn), b"", overwrite=False, namespace=NAMESPACE)
        if not taken and max(turns := _turns()) == turn:
            for earlier in turns:
                if earlier < turn:
                    internal_kv._internal_kv_del(_turn(earlier), namespace=NAMESPACE)
            return True
        self._put(wanted=wanted, starts=False)
        return False

    def _renew(self) -> None:
        while not self._left.wait(BEAT_S):
            with suppress(Exception):  # Ray's head may be restarting
                self._put()

    def _put(self, **changes: Any) -> None:
        with self._lock:
            if not self._left.is_set():
                self._mine = msgspec.structs.replace(self._mine, beat=self._mine.beat + 1, **changes)
                data = msgspec.msgpack.encode(self._mine)
                internal_kv._internal_kv_put(_key(self._mine), data, namespace=NAMESPACE)


def places() -> list[QueuePlace]:
    """Return the entries of the queue, in no order."""
    found = []
    for key in internal_kv._internal_kv_list(PLACES, namespace=NAMESPACE):
        data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        if data is not None:
            found.append(msgspec.msgpack.decode(data, type=QueuePlace))
    return found


def free_room(living: Living, lost: frozenset[str] = frozenset()) -> ClusterView:
    """Return the free resources that no job in the queue waits for. `living` must be the same for all calls."""
    return left(_free(lost, _held()), living.among(places(), time.monotonic()), None)


def room_to_grow(job: str, usable: ClusterView, living: Living, lost: Collection[str]) -> ClusterView:
    """Return the `usable` resources of a job that runs, without those for which other jobs wait. `living` must be the
    same for all calls."""
    others = [place for place in living.among(places(), time.monotonic()) if place.job != job]
    return spare(usable, _free(lost, _held()), others)


def _free(lost: Collection[str], held: Mapping[str, Mapping[str, Mapping[str, float]]]) -> ClusterView:
    """Return the free resources. Ray reports late what has just been reserved, so reservations count as well."""
    rest = living_nodes(lost)
    for of in held.values():
        rest = less(rest, of)
    return least(free_nodes(lost), rest)


def _held() -> dict[str, dict[str, dict[str, float]]]:
    """Return the reserved resources by job and node."""
    held: dict[str, dict[str, dict[str, float]]] = {}
    for table in sorted(placement_group_table().values(), key=lambda table: str(table["name"])):
        if table["state"] == "REMOVED" or not table["name"].startswith(BUNDLES):
            continue
        job = held.setdefault(table["name"].removeprefix(BUNDLES).rpartition(":")[0], {})
        for index, node in table["bundles_to_node_id"].items():
            sums = job.setdefault(node, {})
            for key, amount in table["bundles"][index].items():
                name = NAMES.get(key, key)
                sums[name] = sums.get(name, 0.0) + (amount / 1e9 if key == "memory" else amount)
    return held


def _turns() -> list[int]:
    found = internal_kv._internal_kv_list(TURNS, namespace=NAMESPACE)
    return [int(key.removeprefix(TURNS)) for key in found]


def _turn(number: int) -> bytes:
    return TURNS + str(number).encode()


def _key(place: QueuePlace) -> bytes:
    return PLACES + place.ticket.encode()


def _remove(place: QueuePlace) -> None:
    internal_kv._internal_kv_del(_key(place), namespace=NAMESPACE)
