"""Nodes, slots and plans: the data that placement strategies read and write. All of it is plain and pure.

A *slot* is a share of one node (cores, devices) reserved for ranks; an *assignment* puts a rank on a slot. Ranks that
share a slot share its resources, which is what collocation means. A node's *bundle* is the sum of its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from rolemesh.cluster import ClusterView

__all__ = [
    "Assignment",
    "Capacity",
    "PlacementPlan",
    "PlacementRequest",
    "RoleRequest",
    "Slot",
    "Strategy",
    "Unplaced",
]


class RoleRequest(msgspec.Struct, frozen=True):
    """What one role asks for; `cpu`, `gpu` and `custom` are per rank."""

    role: str
    world_size: int
    cpu: float = 1.0
    gpu: float = 0.0
    custom: dict[str, float] = {}
    group: Literal["independent", "collective"] = "independent"

    @property
    def needs(self) -> dict[str, float]:
        """What one rank needs, by name."""
        return {"cpu": self.cpu, "gpu": self.gpu, **self.custom}


class PlacementRequest(msgspec.Struct, frozen=True):
    """All roles of a job, in the job file's order, and the pairs of roles that talk (from the traced graph)."""

    roles: tuple[RoleRequest, ...]
    talks: tuple[tuple[str, str], ...] = ()

    def role(self, name: str) -> RoleRequest:
        """The request of role `name`; `KeyError` if there is none."""
        for request in self.roles:
            if request.role == name:
                return request
        raise KeyError(name)


class Slot(msgspec.Struct, frozen=True):
    """A share of one node. `gpus` are device indices on the node with the share taken of each, summing to `gpu`."""

    id: int
    node: str
    cpu: float
    gpu: float = 0.0
    gpus: tuple[tuple[int, float], ...] = ()
    custom: dict[str, float] = {}


class Assignment(msgspec.Struct, frozen=True):
    """Rank `rank` of `role` runs on slot `slot`, with `share` of its resources. `rule` says who decided, and why."""

    role: str
    rank: int
    slot: int
    share: float = 1.0
    rule: str = ""


class Unplaced(msgspec.Struct, frozen=True):
    """A rank for which no place was found, and what is missing, in numbers."""

    role: str
    rank: int
    reason: str


class PlacementPlan(msgspec.Struct, frozen=True):
    """Slots and who is on them. Strategies return a new plan; they never change what an earlier one decided."""

    slots: tuple[Slot, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()

    def slot(self, slot_id: int) -> Slot:
        """The slot with this id (ids are positions)."""
        return self.slots[slot_id]

    def node_of(self, role: str, rank: int) -> str:
        """The node of a placed rank; `KeyError` if it has none."""
        for a in self.assignments:
            if a.role == role and a.rank == rank:
                return self.slots[a.slot].node
        raise KeyError((role, rank))

    def placed(self) -> set[tuple[str, int]]:
        """The ranks that have a place."""
        return {(a.role, a.rank) for a in self.assignments}

    def bundles(self) -> dict[str, dict[str, float]]:
        """Per node the resources to reserve there: ``{"node-a": {"cpu": 3.0, "gpu": 1.0}}``."""
        result: dict[str, dict[str, float]] = {}
        for slot in self.slots:
            bundle = result.setdefault(slot.node, {"cpu": 0.0, "gpu": 0.0})
            for name, amount in {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}.items():
                bundle[name] = bundle.get(name, 0.0) + amount
        return result

    def held(self, node: str) -> dict[str, float]:
        """What the agent on `node` holds: its bundle, with whole GPUs where the plan touches more than one.

        A share can be reserved of a single device only: two halves of two devices would be granted as one device.
        """
        held = dict(self.bundles()[node])
        devices = {index for slot in self.slots if slot.node == node for index, _ in slot.gpus}
        if len(devices) > 1:
            held["gpu"] = float(len(devices))
        return held

    def free(self, cluster: ClusterView) -> Mapping[str, dict[str, float]]:
        """Per node what the cluster has and this plan has not taken."""
        taken = self.bundles()
        return {
            node.id: {
                name: amount - taken.get(node.id, {}).get(name, 0.0)
                for name, amount in {"cpu": node.cpu, "gpu": node.gpu, **node.custom}.items()
            }
            for node in cluster.nodes
        }


class Strategy(NamedTuple):
    """A placement strategy as it is asked: its name, its hook `place` and, where it has one, its hook `replace`."""

    name: str
    place: Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None]
    replace: Callable[[PlacementPlan, tuple[str, ...], ClusterView], PlacementPlan | None] | None = None


EXACT = 9
"""Decimal places to which shares of resources are added up."""


class Capacity:
    """What is free on each node, GPU by GPU, while a strategy takes slots. Copy it to try something out.

    Whole GPUs are taken by device index, lowest first; a fraction goes to the device where the least is left that is
    enough, so that whole devices stay free.
    """

    def __init__(self, cluster: ClusterView, slots: Iterable[Slot] = ()) -> None:
        """`slots` are taken already; those on nodes that are not in `cluster` do not count."""
        self.nodes = tuple(node.id for node in cluster.nodes)
        self._amounts = {node.id: {"cpu": node.cpu, **node.custom} for node in cluster.nodes}
        self._devices = {node.id: [1.0] * int(node.gpu) for node in cluster.nodes}
        for slot in slots:
            if slot.node in self._amounts:
                self._use(slot)

    def copy(self) -> Capacity:
        """The same, to be changed independently."""
        other = Capacity(ClusterView(()))
        other.nodes = self.nodes
        other._amounts = {node: dict(amounts) for node, amounts in self._amounts.items()}
        other._devices = {node: list(devices) for node, devices in self._devices.items()}
        return other

    def free(self, node: str) -> dict[str, float]:
        """What is left on `node` by name; ``gpu`` is the sum over its devices."""
        return {"gpu": round(sum(self._devices[node]), EXACT), **self._amounts[node]}

    def short(self, node: str, needs: Mapping[str, float]) -> tuple[str, ...]:
        """The names of what `node` has too little of; empty if ``{"cpu": …, "gpu": …, …}`` fits there."""
        amounts = self._amounts[node]
        missing = [n for n, need in needs.items() if n != "gpu" and round(amounts.get(n, 0.0) - need, EXACT) < 0]
        if self._choose(node, needs.get("gpu", 0.0)) is None:
            missing.append("gpu")
        return tuple(missing)

    def take(self, slot_id: int, node: str, needs: Mapping[str, float]) -> Slot | None:
        """A slot with `needs` on `node`, or None if they do not fit."""
        if self.short(node, needs):
            return None
        gpu = needs.get("gpu", 0.0)
        custom = {name: amount for name, amount in needs.items() if name not in ("cpu", "gpu") and amount}
        slot = Slot(slot_id, node, needs.get("cpu", 0.0), gpu, self._choose(node, gpu) or (), custom)
        self._use(slot)
        return slot

    def first_fit(self, slot_id: int, nodes: Iterable[str], needs: Mapping[str, float]) -> Slot | None:
        """A slot with `needs` on the first of `nodes` where they fit, or None."""
        return next((slot for node in nodes if (slot := self.take(slot_id, node, needs)) is not None), None)

    def room(self, node: str, needs: Mapping[str, float], most: int) -> int:
        """How many slots with `needs` fit on `node`, counted up to `most`."""
        trial = self.copy()
        return next((count for count in range(most) if trial.take(0, node, needs) is None), most)

    def _use(self, slot: Slot) -> None:
        amounts, devices = self._amounts[slot.node], self._devices[slot.node]
        for name, amount in {"cpu": slot.cpu, **slot.custom}.items():
            amounts[name] = round(amounts.get(name, 0.0) - amount, EXACT)
        for index, share in slot.gpus:
            if index < len(devices):
                devices[index] = round(devices[index] - share, EXACT)

    def _choose(self, node: str, gpu: float) -> tuple[tuple[int, float], ...] | None:
        devices = self._devices[node]
        whole, rest = int(gpu), round(gpu % 1, EXACT)
        chosen = [(index, 1.0) for index, left in enumerate(devices) if left == 1.0][:whole]
        if len(chosen) < whole:
            return None
        if rest:
            taken = {index for index, _ in chosen}
            fits = [(left, index) for index, left in enumerate(devices) if index not in taken and left >= rest]
            if not fits:
                return None
            chosen.append((min(fits)[1], rest))
        return tuple(chosen)
