"""The placement strategy `pack`: a slot for each rank, on the first node where it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rolemesh.cluster import ClusterView
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import (
    Assignment,
    Capacity,
    PlacementPlan,
    PlacementRequest,
    RoleRequest,
    Slot,
    Unplaced,
)
from rolemesh.scheduler import Scheduler

__all__ = ["PackScheduler"]


class PackScheduler(Scheduler):
    """First fit, node by node, a slot of its own for each rank.

    Collective roles come first and stay on one node if one can take them, else on as few as possible. After them come
    the others, those with the largest ranks first; a rank goes next to the ranks it exchanges values with if there is
    room. Ranks without needs (``cpu: 0``) fit everywhere.
    """

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Give a slot to every rank that has none and is not `Unplaced`; where there is no room, it becomes so."""
        packing = _Packing(request, cluster, plan)
        for role in sorted(request.roles, key=_first):
            packing.place(role)
        return packing.plan()

    @hookimpl
    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        """Move the slots of lost nodes, with all ranks on them, to the first node with room; slot ids stay."""
        alive = ClusterView(tuple(node for node in cluster.nodes if node.id not in lost))
        capacity = Capacity(alive, (slot for slot in plan.slots if slot.node not in lost))
        moved: dict[int, Slot] = {}
        leaving = [slot for slot in plan.slots if slot.node in lost]
        for slot in sorted(leaving, key=lambda slot: (-slot.gpu, -sum(slot.custom.values()), -slot.cpu)):
            needs = {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}
            taken = capacity.first_fit(slot.id, capacity.nodes, needs)
            if taken is None:
                return None
            moved[slot.id] = taken
        assignments = tuple(
            msgspec.structs.replace(a, rule=f"pack: moved, {plan.slots[a.slot].node} is lost") if a.slot in moved else a
            for a in plan.assignments
        )
        slots = tuple(moved.get(slot.id, slot) for slot in plan.slots)
        return msgspec.structs.replace(plan, slots=slots, assignments=assignments)


class _Packing:
    """The state of one `place`: what is free, and what has been decided."""

    def __init__(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> None:
        self.request = request
        self.before = plan
        self.capacity = Capacity(cluster, plan.slots)
        self.slots = list(plan.slots)
        self.assignments = list(plan.assignments)
        self.node_of = {(a.role, a.rank): plan.slots[a.slot].node for a in plan.assignments}
        self.decided = self.node_of.keys() | {(unplaced.role, unplaced.rank) for unplaced in plan.unplaced}
        self.homeless: list[tuple[RoleRequest, int, dict[str, str]]] = []

    def place(self, role: RoleRequest) -> None:
        """Place the ranks of `role` that have no place."""
        ranks = [rank for rank in range(role.world_size) if (role.role, rank) not in self.decided]
        if role.group == "collective" and len(ranks) > 1:
            nodes = self._together(role, len(ranks))
            why = "all of the group on one node" if len(nodes) == 1 else "the group on as few nodes as possible"
            for node in nodes:
                while ranks and self._put(role, ranks[0], (node,), why):
                    ranks.pop(0)
        for rank in ranks:
            near = self._near(role, rank)
            nodes = [*near, *(node for node in self.capacity.nodes if node not in near)]
            if not self._put(role, rank, nodes, "first fit", near):
                self.homeless.append((role, rank, self._shortage(role)))

    def plan(self) -> PlacementPlan:
        """The new plan. Reasons are told last, when it is known what is left."""
        unplaced = tuple(Unplaced(role.role, rank, self._reason(short)) for role, rank, short in self.homeless)
        return PlacementPlan(tuple(self.slots), tuple(self.assignments), self.before.unplaced + unplaced)

    def _put(
        self, role: RoleRequest, rank: int, nodes: Iterable[str], why: str, near: Mapping[str, str] | None = None
    ) -> bool:
        slot = self.capacity.first_fit(len(self.slots), nodes, role.needs)
        if slot is None:
            return False
        if near and slot.node in near:
            why = f"beside {near[slot.node]}"
        self.slots.append(slot)
        self.assignments.append(Assignment(role.role, rank, slot.id, rule=f"pack: {why}"))
        self.node_of[role.role, rank] = slot.node
        return True

    def _together(self, role: RoleRequest, count: int) -> list[str]:
        """The first node that takes all `count` ranks; or all nodes, those first that take most."""
        room = {node: self.capacity.room(node, role.needs, count) for node in self.capacity.nodes}
        for node in [*self._near(role, 0), *self.capacity.nodes]:
            if room[node] == count:
                return [node]
        return sorted(self.capacity.nodes, key=lambda node: -room[node])

    def _near(self, role: RoleRequest, rank: int) -> dict[str, str]:
        """Nodes of the ranks that this one exchanges rows with, and such a rank on each."""
        near: dict[str, str] = {}
        for pair in self.request.talks:
            if role.role in pair and pair[0] != pair[1]:
                other = pair[1] if pair[0] == role.role else pair[0]
                peer = rank * self.request.role(other).world_size // role.world_size
                node = self.node_of.get((other, peer))
                if node in self.capacity.nodes and node is not None:
                    near.setdefault(node, f"{other}/{peer}")
        return near

    def _shortage(self, role: RoleRequest) -> dict[str, str]:
        """What is in the way of a rank of `role` now, by resource."""
        nodes = self.capacity.nodes
        free = {node: self.capacity.free(node) for node in nodes}
        lacking = {name for node in nodes for name in self.capacity.short(node, role.needs)}
        told: dict[str, str] = {}
        for name, need in role.needs.items():
            if name in lacking:
                best = max(nodes, key=lambda node: free[node].get(name, 0.0))
                most = free[best].get(name, 0.0)
                told[name] = f"needs {name} {need:g}, the most that is free on a node is {most:g} ({best})"
                if most >= need:
                    told[name] += ", but not whole, or not where the rest is free"
        return told

    def _reason(self, shortage: Mapping[str, str]) -> str:
        """`shortage` with what the cluster misses for all ranks without a place, now that all have been tried."""
        parts: list[str] = []
        for name, told in shortage.items():
            free = sum(self.capacity.free(node).get(name, 0.0) for node in self.capacity.nodes)
            missing = round(sum(role.needs.get(name, 0.0) for role, _, _ in self.homeless) - free, 6)
            rest = f"the cluster misses {missing:g} {name}" if missing > 0 else f"{free:g} are free in all, scattered"
            parts.append(f"{told}; {rest}")
        return "; ".join(parts) or "the cluster has no nodes"


def _first(role: RoleRequest) -> tuple[object, ...]:
    return (role.group != "collective", -role.gpu, -sum(role.custom.values()), -role.cpu)
