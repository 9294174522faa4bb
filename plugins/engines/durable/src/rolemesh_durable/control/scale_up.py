"""Request more ranks for the elastic roles of a running job when nodes join, with the same request that users send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.api.observer import JobStatus
from rolemesh.errors import RolemeshError
from rolemesh.placement import PlacementRequest
from rolemesh_durable.control.resizing import resize

__all__ = ["Growth", "held_by", "with_own"]

LOOK_S = 1.0
"""Seconds between looks at the nodes. Room must be seen twice in a row, so nodes that join together count together."""


def held_by(status: JobStatus, request: PlacementRequest) -> dict[str, dict[str, float]]:
    """Return the resources that the job's ranks request, by node."""
    own: dict[str, dict[str, float]] = {}
    for rank in status.ranks:
        at = own.setdefault(rank.node, {})
        for name, amount in request.role(rank.role).needs.items():
            at[name] = at.get(name, 0.0) + amount
    return own


def with_own(free: ClusterView, own: Mapping[str, Mapping[str, float]]) -> ClusterView:
    """Return the resources that a job may use: `own`, which it has, and `free`, which nobody has, by node."""
    return ClusterView(tuple(_with(node, own.get(node.id, {})) for node in free.nodes))


def _with(node: NodeView, own: Mapping[str, float]) -> NodeView:
    custom = {name: amount + own.get(name, 0.0) for name, amount in node.custom.items()}
    cpu, gpu = node.cpu + own.get("cpu", 0.0), node.gpu + own.get("gpu", 0.0)
    return msgspec.structs.replace(node, cpu=cpu, gpu=gpu, custom=custom)


class Growth(threading.Thread):
    """Watches for room, and has the job resized when there is some."""

    def __init__(
        self, run_dir: Path, sizes: Mapping[str, int], room: Callable[[], Mapping[str, int]], say: Callable[[str], None]
    ) -> None:
        """`sizes` are the present world sizes of the elastic roles; `room` returns how large they could be.

        Roles that became smaller because nodes were lost grow again when there is room.
        """
        super().__init__(name="growth", daemon=True)
        self._run_dir, self._sizes, self._room, self._say = run_dir, dict(sizes), room, say
        self._over = threading.Event()

    def run(self) -> None:
        """Look for room until `stop`."""
        before: Mapping[str, int] = {}
        refused: Mapping[str, int] = {}
        while not self._over.wait(LOOK_S):
            with suppress(RolemeshError):  # the job starts, ends, or its master is being started again
                larger = self._room()
                if self._is_larger(larger) and larger == before and larger != refused and not self._grow(larger):
                    refused = larger
                before = larger
                self._sizes = {role: min(size, larger[role]) for role, size in self._sizes.items()}

    def stop(self) -> None:
        """Stop, because the job is over."""
        self._over.set()
        self.join()

    def _is_larger(self, sizes: Mapping[str, int]) -> bool:
        return sizes != self._sizes and all(sizes[role] >= size for role, size in self._sizes.items())

    def _grow(self, larger: Mapping[str, int]) -> bool:
        told = ", ".join(f"{role} {self._sizes[role]} → {size}" for role, size in larger.items())
        event = resize(self._run_dir, dict(larger), f"nodes have joined: {told}", self._over.is_set)
        if event is None or event.kind == "resize_refused":
            return False
        if event.kind == "resized":
            self._say(f"nodes have joined: {told}")
        self._sizes = dict(larger)
        return True
