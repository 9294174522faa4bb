"""The strategy: which ranks share a slot, how large the slot is, and on which node it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from rolemesh import Assignment, ClusterView, PlacementPlan, PlacementRequest, RoleRequest, Scheduler, Unplaced
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import Capacity

__all__ = ["CollocationOptions", "CollocationScheduler"]


class CollocationOptions(BaseModel, extra="forbid"):
    """Which roles share slots."""

    groups: Annotated[list[Annotated[list[str], Field(min_length=2)]], Field(min_length=1)] = Field(
        description="Groups of roles. Rank i of each role of a group shares slot i; a role with fewer ranks than the "
        "group has slots sits on every k-th of them."
    )

    @model_validator(mode="after")
    def _each_role_once(self) -> CollocationOptions:
        roles = [role for group in self.groups for role in group]
        if twice := sorted({role for role in roles if roles.count(role) > 1}):
            raise ValueError(f"role {twice[0]!r} is listed twice; a rank can sit on one slot only")
        return self


class CollocationScheduler(Scheduler):
    """Places the groups' ranks on shared slots, node by node, and leaves all other roles to the next strategy.

    A group has as many slots as its largest role has ranks; each slot has the largest amount that any of the roles
    needs per rank, because they are expected to take turns. Smaller roles are spread over the slots evenly, so their
    world sizes must divide the largest. A group with a collective role stays on one node if one has room.
    """

    Options = CollocationOptions

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Add the groups' slots. Raises `PlacementError` for unknown roles and world sizes that do not divide."""
        for names in self.options.groups:
            plan = _place_group(_roles(names, request, plan), cluster, plan)
        return plan


def _roles(names: list[str], request: PlacementRequest, plan: PlacementPlan) -> list[RoleRequest]:
    known = {role.role: role for role in request.roles}
    for name in names:
        if name not in known:
            what = f"collocation: the group [{', '.join(names)}] names the unknown role {name!r}"
            raise PlacementError(what, where="placement", remedy=f"{nearest(name, known)}; roles: {', '.join(known)}")
        if any(assignment.role == name for assignment in plan.assignments):
            what = f"collocation: role {name!r} was placed by an earlier strategy"
            raise PlacementError(what, where="placement", remedy="put collocation first, or take the role out of it")
    roles = [known[name] for name in names]
    slots = max(role.world_size for role in roles)
    for role in roles:
        if slots % role.world_size:
            what = (
                f"collocation: {role.role!r} has {role.world_size} ranks, which cannot be spread evenly over the "
                f"{slots} slots of [{', '.join(names)}]"
            )
            remedy = f"set roles.{role.role}.world_size to a divisor of {slots}"
            raise PlacementError(what, where="placement", remedy=remedy)
    return roles


def _place_group(roles: list[RoleRequest], cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
    count = max(role.world_size for role in roles)
    needs: dict[str, float] = {}
    for role in roles:
        for name, amount in role.needs.items():
            needs[name] = max(needs.get(name, 0.0), amount)
    capacity = Capacity(cluster, plan.slots)
    slots = list(plan.slots)
    assignments = list(plan.assignments)
    unplaced = list(plan.unplaced)
    nodes = _nodes(capacity, needs, count, collective=any(role.group == "collective" for role in roles))
    reason = ""
    for index in range(count):
        slot = capacity.first_fit(len(slots), nodes, needs)
        on_it = [(role, index * role.world_size // count) for role in roles if index % (count // role.world_size) == 0]
        if slot is not None:
            slots.append(slot)
            names = " + ".join(f"{role.role}/{rank}" for role, rank in on_it)
            rule = f"collocation: {names} share a slot" if len(on_it) > 1 else "collocation: a slot of its group"
            assignments += [Assignment(role.role, rank, slot.id, rule=rule) for role, rank in on_it]
        else:
            reason = reason or _reason(roles, capacity, needs, count - index)
            unplaced += [Unplaced(role.role, rank, reason) for role, rank in on_it]
    return PlacementPlan(tuple(slots), tuple(assignments), tuple(unplaced))


def _nodes(capacity: Capacity, needs: Mapping[str, float], count: int, *, collective: bool) -> list[str]:
    """All nodes in order; for a collective group, the first that takes all slots, else those first that take most."""
    if not collective:
        return list(capacity.nodes)
    room = {node: capacity.room(node, needs, count) for node in capacity.nodes}
    enough = [node for node in capacity.nodes if room[node] == count]
    return enough[:1] or sorted(capacity.nodes, key=lambda node: -room[node])


def _reason(roles: list[RoleRequest], capacity: Capacity, needs: Mapping[str, float], missing: int) -> str:
    asked = ", ".join(f"{name} {amount:g}" for name, amount in needs.items() if amount)
    free = [
        f"{node} has " + ", ".join(f"{name} {capacity.free(node).get(name, 0.0):g}" for name in needs if needs[name])
        for node in capacity.nodes[:4]
    ]
    shared = ", ".join(role.role for role in roles)
    return f"{missing} more slots of {asked} are needed for [{shared}], free: {'; '.join(free) or 'no nodes'}"
