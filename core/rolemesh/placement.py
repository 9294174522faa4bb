"""Nodes, slots and plans: the data that placement strategies read and write. All of it is plain and pure.

A *slot* is a share of one node (cores, devices) reserved for ranks; an *assignment* puts a rank on a slot. Ranks that
share a slot share its resources, which is what collocation means. A node's *bundle* is the sum of its slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rolemesh.cluster import ClusterView

__all__ = ["Assignment", "PlacementPlan", "PlacementRequest", "RoleRequest", "Slot", "Unplaced"]


class RoleRequest(msgspec.Struct, frozen=True):
    """What one role asks for; `cpu`, `gpu` and `custom` are per rank."""

    role: str
    world_size: int
    cpu: float = 1.0
    gpu: float = 0.0
    custom: dict[str, float] = {}
    group: Literal["independent", "collective"] = "independent"


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
