"""Elastic roles of a job that runs grow when nodes join: it stops at a snapshot and goes on from it with more ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.placement import PlacementPlan
from rolemesh_durable.checkpoint import disk
from rolemesh_durable.control.client import ControlClient, MasterGoneError

__all__ = ["Growth", "with_own"]

LOOK_S = 1.0
"""How often the nodes are looked at. What is seen twice in a row counts, so nodes that join together count together."""


def with_own(free: ClusterView, plan: PlacementPlan) -> ClusterView:
    """What a job could have that has `plan` now, where `free` is what nobody has."""
    own = plan.bundles()
    return ClusterView(tuple(_with(node, own.get(node.id, {})) for node in free.nodes))


def _with(node: NodeView, own: Mapping[str, float]) -> NodeView:
    custom = {name: amount + own.get(name, 0.0) for name, amount in node.custom.items()}
    cpu, gpu = node.cpu + own.get("cpu", 0.0), node.gpu + own.get("gpu", 0.0)
    return msgspec.structs.replace(node, cpu=cpu, gpu=gpu, custom=custom)


class Growth(threading.Thread):
    """Watches for room, and stops the job when there is some, right after a snapshot has become whole on disk."""

    def __init__(
        self, run_dir: Path, sizes: Mapping[str, int], room: Callable[[], Mapping[str, int]], say: Callable[[str], None]
    ) -> None:
        """`sizes` are the world sizes of the elastic roles now, `room` says how large they could be."""
        super().__init__(name="growth", daemon=True)
        self._run_dir, self._sizes, self._room, self._say = run_dir, dict(sizes), room, say
        self._over = threading.Event()
        self.asked = False
        """Whether the job has been stopped in order to grow."""

    def run(self) -> None:
        """Look until there is room, or until `stop`."""
        before: Mapping[str, int] = {}
        while not self._over.wait(LOOK_S):
            larger = self._room()
            if self._is_larger(larger) and larger == before:
                self._grow(larger)
                return
            before = larger

    def stop(self) -> bool:
        """The job is over. Whether it has been stopped here, and is to go on."""
        self._over.set()
        self.join()
        return self.asked

    def _is_larger(self, sizes: Mapping[str, int]) -> bool:
        return sizes != self._sizes and all(sizes[role] >= size for role, size in self._sizes.items())

    def _grow(self, larger: Mapping[str, int]) -> None:
        told = ", ".join(f"{role} {self._sizes[role]} → {size}" for role, size in larger.items())
        self._say(f"nodes have joined: {told}, from the next snapshot on disk")
        newest = disk.newest_complete(self._run_dir)
        while disk.newest_complete(self._run_dir) == newest:
            if self._over.wait(LOOK_S / 10):
                return
        try:
            with ControlClient(self._run_dir) as client:
                self.asked = True
                client.stop(f"to go on with more ranks: {told}")
        except MasterGoneError:
            self.asked = False
