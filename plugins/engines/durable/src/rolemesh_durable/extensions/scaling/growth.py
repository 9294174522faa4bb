"""Growth of elastic roles when nodes join: the driver sends the same request for more ranks that users send."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.api.observer import JobStatus
from rolemesh.errors import RolemeshError
from rolemesh.job.engine import Say
from rolemesh.job.prepared import Prepared
from rolemesh.placement import PlacementRequest
from rolemesh_durable.backends import Backend, Shared
from rolemesh_durable.control.asking import ask
from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.relayout.requests import ResizeRequest

__all__ = ["Followed", "Growth"]

LOOK_S = 1.0
"""Seconds between looks at the nodes. Room must be seen twice in a row, so nodes that join together count together."""


def _held_by(status: JobStatus, request: PlacementRequest) -> dict[str, dict[str, float]]:
    """Return the resources that the job's ranks request, by node."""
    own: dict[str, dict[str, float]] = {}
    for rank in status.ranks:
        at = own.setdefault(rank.node, {})
        for name, amount in request.role(rank.role).needs.items():
            at[name] = at.get(name, 0.0) + amount
    return own


def _with_own(free: ClusterView, own: Mapping[str, Mapping[str, float]]) -> ClusterView:
    """Return the resources that a job may use: `own`, which it has, and `free`, which nobody has, by node."""
    return ClusterView(tuple(_with(node, own.get(node.id, {})) for node in free.nodes))


def _with(node: NodeView, own: Mapping[str, float]) -> NodeView:
    custom = {name: amount + own.get(name, 0.0) for name, amount in node.custom.items()}
    cpu, gpu = node.cpu + own.get("cpu", 0.0), node.gpu + own.get("gpu", 0.0)
    return msgspec.structs.replace(node, cpu=cpu, gpu=gpu, custom=custom)


class Followed(NamedTuple):
    """A running job that a driver follows."""

    asked: Prepared
    """The requested job, with its elastic roles."""
    job: Prepared
    """The job that runs: the requested one, fitted to the nodes."""
    backend: Backend
    run_dir: Path
    snapshots: bool
    """True if the job takes snapshots while it runs."""
    say: Say
    """Prints a line for the user."""


class Growth:
    """Watches for room, and has the job resized when there is some.

    It does so if some role may have more ranks, nodes can join, and no scaler decides that. Roles that became smaller
    because nodes were lost grow again when there is room.
    """

    def __init__(self, followed: Followed) -> None:
        self._followed, asked = followed, followed.asked
        self._sizes = {role: int(followed.job.job.spec.roles[role].world_size) for role in asked.elastic}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, in a thread."""
        backend, selection = self._followed.backend, self._followed.job.selection
        has_scalers = any(kind == "scalers" for kind, _ in selection.declared)
        if not isinstance(backend, Shared) or not self._sizes or has_scalers:
            return
        if not self._followed.snapshots:
            self._followed.say("elastic roles stay as they are: a job grows from a snapshot, and this one takes none")
            return
        self._thread = threading.Thread(target=self._watch, args=(backend,), name="growth", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, backend: Shared) -> None:
        before: Mapping[str, int] = {}
        refused: Mapping[str, int] = {}
        while not self._over.wait(LOOK_S):
            with suppress(RolemeshError):  # the job starts, ends, or its master is being started again
                larger = self._room(backend)
                if self._is_larger(larger) and larger == before and larger != refused and not self._grow(larger):
                    refused = larger
                before = larger
                self._sizes = {role: min(size, larger[role]) for role, size in self._sizes.items()}

    def _room(self, backend: Shared) -> dict[str, int]:
        """Return how large the elastic roles could be. Raises `MasterGoneError`."""
        with ControlClient(self._followed.run_dir) as client:
            own = _held_by(client.status(), self._followed.asked.request)
        return self._followed.asked.largest(_with_own(backend.free(), own))

    def _is_larger(self, sizes: Mapping[str, int]) -> bool:
        return sizes != self._sizes and all(sizes[role] >= size for role, size in self._sizes.items())

    def _grow(self, larger: Mapping[str, int]) -> bool:
        told = ", ".join(f"{role} {self._sizes[role]} → {size}" for role, size in larger.items())
        event = ask(self._followed.run_dir, ResizeRequest(larger, f"nodes have joined: {told}"), self._over.is_set)
        if event is None or event.kind == "resize_refused":
            return False
        if event.kind == "resized":
            self._followed.say(f"nodes have joined: {told}")
        self._sizes = dict(larger)
        return True
