"""The strategy `pd`: units of prefill and decode ranks, each on one node or near it, whose ranks know each other."""

from __future__ import annotations

from collections import Counter
from math import gcd

from rolemesh import ClusterView, PlacementPlan, PlacementRequest, RankRef, RoleRequest, Scheduler
from rolemesh.errors import PlacementError, nearest
from rolemesh.hookspecs import hookimpl
from rolemesh.placement import PlanBuilder, Wish
from rolemesh_pd.options import PdOptions

__all__ = ["PdScheduler"]

Rank = tuple[str, int]


class PdScheduler(Scheduler):
    """Places both pools unit by unit, and leaves all other roles to the next strategy.

    A decode rank's `RankContext.peers` are the prefill ranks of its unit, and the other way round.
    """

    Options = PdOptions
    options: PdOptions

    @hookimpl
    def place(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan:
        """Add the units.

        Raises `PlacementError` for roles that do not exist or that an earlier strategy has placed, and for world sizes
        without that ratio.
        """
        prefill, decode = (_role(getattr(self.options, pool), pool, request, plan) for pool in ("prefill", "decode"))
        each = _per_unit(self.options, prefill, decode)
        builder = PlanBuilder(request, cluster, plan)
        domains = _domains(self.options.near, cluster)
        for unit in range(prefill.world_size // each[0]):
            members = [
                [RankRef(role.role, unit * count + i) for i in range(count)]
                for role, count in zip((prefill, decode), each, strict=True)
            ]
            _place(unit, members, (prefill, decode), domains, builder)
        return builder.build()


def _role(name: str, pool: str, request: PlacementRequest, plan: PlacementPlan) -> RoleRequest:
    known = {role.role: role for role in request.roles}
    if name not in known:
        remedy = f"{nearest(name, known)}; roles: {', '.join(known)}"
        raise PlacementError(f"pd: there is no role {name!r}, the {pool} pool", where=pool, remedy=remedy)
    placed = next((a for a in plan.assignments if a.role == name), None)
    if placed is not None:
        by = placed.rule.partition(":")[0] or "an earlier strategy"
        what = f"pd: {name!r}, the {pool} pool, was placed by {by}"
        raise PlacementError(what, where=pool, remedy="put pd first, or take the role out of one")
    return known[name]


def _per_unit(options: PdOptions, prefill: RoleRequest, decode: RoleRequest) -> tuple[int, int]:
    m, n = prefill.world_size, decode.world_size
    if options.ratio is None:
        return m // gcd(m, n), n // gcd(m, n)
    p, d = map(int, options.ratio.split(":"))
    if m % p or n % d or m // p != n // d:
        what = f"pd: {prefill.role} has {m} ranks and {decode.role} {n}, which are no units of {options.ratio}"
        remedy = f"e.g. roles.{prefill.role}.world_size={p * max(1, n // d)}, roles.{decode.role}.world_size="
        raise PlacementError(what, where="ratio", remedy=f"{remedy}{d * max(1, n // d)}")
    return p, d


def _domains(near: str, cluster: ClusterView) -> list[list[str]]:
    """Return the groups of nodes that are near each other, in addition to the single nodes."""
    if near == "node":
        return []
    name = near.removeprefix("label.")
    found: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if name in node.labels:
            found.setdefault(node.labels[name], []).append(node.id)
    if not found:
        labels = {label for node in cluster.nodes for label in node.labels}
        remedy = nearest(name, labels) if labels else "no node has any label"
        raise PlacementError(f"pd: no node has a label {name!r}", where="near", remedy=remedy)
    return list(found.values())


def _place(
    unit: int,
    members: list[list[Rank]],
    roles: tuple[RoleRequest, RoleRequest],
    domains: list[list[str]],
    builder: PlanBuilder,
) -> None:
    peers: dict[Rank, tuple[Rank, ...]] = {rank: tuple(members[1]) for rank in members[0]}
    peers |= {rank: tuple(members[0]) for rank in members[1]}
    size = f"{len(members[0])}:{len(members[1])}"
    wishes = [
        Wish([rank], role.needs, f"pd: unit {unit} ({size})", peers=peers)
        for role, ranks in zip(roles, members, strict=True)
        for rank in ranks
    ]
    if builder.put_together(wishes) is not None:
        return
    if any(builder.put_across(wishes, domain) for domain in domains):
        return
    needs: Counter[str] = Counter()
    for wish in wishes:
        needs.update(wish.needs)
    builder.refuse([*members[0], *members[1]], needs, f"pd: a unit of {size} belongs on one node")
