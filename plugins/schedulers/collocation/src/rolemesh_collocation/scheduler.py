"""The strategy `collocation`: which ranks share a slot, the size of the slot, and its node."""

from __future__ import annotations

from rolemesh import ClusterView, PlacementPlan, PlacementRequest, RankRef, RoleRequest, Scheduler
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import PlanBuilder, Wish
from rolemesh_collocation.options import CollocationOptions, Group

__all__ = ["CollocationScheduler"]


class CollocationScheduler(Scheduler):
    """Places the groups' ranks on shared slots, unit by unit, and leaves all other roles to the next strategy.

    A slot has the largest amount that any of its roles needs per rank. With shares, the roles run at the same time, and
    the slot has the cores of all of them. A unit stays on one node if one has room for it.
    """

    Options = CollocationOptions
    options: CollocationOptions

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Add the groups' slots.

        Raises `PlacementError` for unknown roles, for world sizes that do not divide, and for roles that an earlier
        strategy has placed.
        """
        builder = PlanBuilder(request, cluster, plan)
        for index, group in enumerate(self.options.groups):
            _place_group(group, _roles(group, f"groups.{index}", request, plan), builder)
        return builder.build()


def _roles(group: Group, where: str, request: PlacementRequest, plan: PlacementPlan) -> list[tuple[RoleRequest, int]]:
    """Return the roles of a group, and the number of ranks of each in a unit. `where` is the group's place in the
    options."""
    known = {role.role: role for role in request.roles}
    told = ", ".join(group.roles)
    for name in group.roles:
        if name not in known:
            what = f"collocation: the group [{told}] names the unknown role {name!r}"
            raise PlacementError(what, where=where, remedy=f"{nearest(name, known)}; roles: {', '.join(known)}")
        placed = next((a for a in plan.assignments if a.role == name), None)
        if placed is not None:
            by = placed.rule.partition(":")[0] or "an earlier strategy"
            what = f"collocation: role {name!r} of [{told}] was placed by {by}"
            raise PlacementError(what, where=where, remedy="put collocation first, or take the role out of one")
    roles = [known[name] for name in group.roles]
    sizes = group.ratio or {role.role: role.world_size for role in roles}
    slots = max(sizes.values())
    units = {role.role: role.world_size / sizes[role.role] for role in roles}
    for role in roles:
        size = sizes[role.role]
        if slots % size:
            what = f"collocation: {role.role!r} has {size} ranks, which cannot be spread evenly over the {slots} slots "
            what += f"of {'a unit of ' if group.ratio else ''}[{told}]"
            key = "the ratio" if group.ratio else f"roles.{role.role}.world_size"
            at = f"{where}.ratio" if group.ratio else where
            raise PlacementError(what, where=at, remedy=f"set {key} to a divisor of {slots}")
        if group.ratio and (role.world_size % size or units[role.role] != units[roles[0].role]):
            ratio = ", ".join(f"{name} {count}" for name, count in sizes.items())
            have = ", ".join(f"{each.role} has {each.world_size}" for each in roles)
            what = f"collocation: {have} ranks, which is no multiple of the ratio ({ratio})"
            raise PlacementError(what, where=f"{where}.ratio", remedy="change world sizes, or the ratio")
    return [(role, sizes[role.role]) for role in roles]


def _place_group(group: Group, sizes: list[tuple[RoleRequest, int]], builder: PlanBuilder) -> None:
    slots = max(size for _, size in sizes)
    needs = _needs(group, [role for role, _ in sizes])
    first, size = sizes[0]
    together = group.ratio is not None or any(role.group == "collective" for role, _ in sizes)
    for unit in range(first.world_size // size):
        wishes = []
        for slot in range(slots):
            members = [
                RankRef(role.role, unit * size + slot * size // slots)
                for role, size in sizes
                if slot % (slots // size) == 0
            ]
            names = " + ".join(map(str, members))
            how = "take turns on" if group.turns else "share"
            rule = f"collocation: {names} {how} a slot" if len(members) > 1 else "collocation: a slot of its group"
            wishes.append(Wish(members, needs, rule, group.shares, turns=group.turns))
        if together and builder.put_together(wishes) is not None:
            continue
        nodes = _roomiest(sizes, needs, builder) if together else None
        for wish in wishes:
            if not builder.put(wish.members, needs, wish.rule, nodes, shares=group.shares, turns=group.turns):
                builder.refuse(wish.members, needs, wish.rule)


def _needs(group: Group, roles: list[RoleRequest]) -> dict[str, float]:
    needs: dict[str, float] = {}
    for role in roles:
        for name, amount in role.needs.items():
            together = group.shares and name == "cpu"
            needs[name] = needs.get(name, 0.0) + amount if together else max(needs.get(name, 0.0), amount)
    return needs


def _roomiest(sizes: list[tuple[RoleRequest, int]], needs: dict[str, float], builder: PlanBuilder) -> list[str]:
    """Return all nodes, sorted by how much of a unit they can take when no node can take all of it."""
    largest, slots = max(((role.role, size) for role, size in sizes), key=lambda each: each[1])
    room = {node: builder.room(largest, needs, node, slots) for node in builder.nodes}
    return sorted(builder.nodes, key=lambda node: -room[node])
