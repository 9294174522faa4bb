"""Apply placement strategies in order and check each. Later ones keep the decisions of earlier
ones.

This module also finds the number of ranks of elastic roles. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec.structs import replace

from rolemesh.api.cluster import ClusterView
from rolemesh.api.partition import Broadcast
from rolemesh.errors import PlacementError, raise_all
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.job_file import JobFile
from rolemesh.placement import PlacementPlan, PlacementRequest, Transfer, Unplaced
from rolemesh.placement.validation import ask

Strategy: TypeAlias = Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None]
"""The hook `place` of one plugin."""
GAP = 128
"""Number of sizes above a fitting one that are tried. Ranks never come in larger units."""
NO_STRATEGY = "put a strategy last that places every rank, or install a default one"


def transfers_of(
    graph: LogicalGraph, world_sizes: Mapping[str, int], sizes: Mapping[int, float]
) -> tuple[Transfer, ...]:
    """Return the data that roles send to each other in a step. `sizes` are the bytes per step of
    edges, by their ids, as far as known.

    A value that every consumer receives whole counts once per consumer.
    """
    found: dict[tuple[str, str, Literal["aligned", "all"]], float | None] = {}
    for edge in graph.edges:
        src = graph.ops[edge.src].role
        dst = graph.ops[edge.dst].role
        if src == dst:
            continue
        m = world_sizes[src]
        n = world_sizes[dst]
        path = route(edge.src_partition, m, edge.dst_partition, n)
        everybody = m > 1 and all(len(path.sources(consumer)) == m for consumer in range(n))
        size = sizes.get(edge.id)
        if size is not None and isinstance(edge.dst_partition, Broadcast):
            size *= n
        how: Literal["aligned", "all"] = "all" if everybody else "aligned"
        key = (src, dst, how)
        known = found.get(key, 0.0)
        found[key] = None if known is None or size is None else known + size
    for caller, callee in graph.callers:
        found.setdefault((caller, callee, "all"), None)
    return tuple(Transfer(*key, size) for key, size in found.items())


def plan_job(
    request: PlacementRequest, cluster: ClusterView, strategies: Sequence[tuple[str, Strategy]]
) -> PlacementPlan:
    """Apply `strategies` (with their names) in order; each gets the plan of those before it.

    In the plan every rank is either placed or unplaced. If a strategy returns a rank as `Unplaced`,
    later ones leave it so, because another place would contradict the job file.

    Raises `PlacementError`, with the strategy's name, if a strategy returns an impossible plan. Its
    `where` is a path in the job file: ``placement.1.use``, or ``placement.1.options.groups.0`` if
    the strategy's error names ``groups.0``.
    """
    plan = PlacementPlan()
    for index, (name, strategy) in enumerate(strategies):
        try:
            plan = ask(name, strategy, request, cluster, plan)
        except PlacementError as error:
            option = (
                f"options.{error.where}" if error.where and error.where != "placement" else "use"
            )
            error.where = f"placement.{index}.{option}"
            raise
    judged = {*plan.placed(), *((unplaced.role, unplaced.rank) for unplaced in plan.unplaced)}
    left = tuple(
        Unplaced(role.role, rank, "no strategy has placed it", NO_STRATEGY)
        for role in request.roles
        for rank in range(role.world_size)
        if (role.role, rank) not in judged
    )
    return replace(plan, unplaced=(*plan.unplaced, *left)) if left else plan


def check_placed(plan: PlacementPlan, job: JobFile | None = None) -> None:
    """Raise `PlacementError` (or `Problems`) with the missing resources of each role, unless every
    rank has a place.

    With `job`, each error has the line of its role in the job file.
    """
    by_role: dict[str, list[Unplaced]] = {}
    for unplaced in plan.unplaced:
        by_role.setdefault(unplaced.role, []).append(unplaced)
    errors: list[PlacementError] = []
    for role, ranks in by_role.items():
        what = (
            f"{_ranks(ranks)} cannot be placed: {'; '.join(dict.fromkeys(u.reason for u in ranks))}"
        )
        remedy = (
            f"lower roles.{role}.world_size or roles.{role}.resources, share slots, or add nodes"
        )
        where = job.where(("roles", role)) if job else f"role {role}"
        errors.append(PlacementError(what, where=where, remedy=remedy))
        errors[-1].remedy = "; ".join(
            dict.fromkeys(unplaced.remedy or remedy for unplaced in ranks)
        )
    raise_all(errors)


def _ranks(ranks: Sequence[Unplaced]) -> str:
    numbers = ", ".join(str(unplaced.rank) for unplaced in ranks[:8]) + (
        ", …" if len(ranks) > 8 else ""
    )
    return f"rank {numbers}" if len(ranks) == 1 else f"{len(ranks)} ranks ({numbers})"


def largest(
    ranges: Mapping[str, tuple[int, int]], fits: Callable[[Mapping[str, int]], bool]
) -> dict[str, int]:
    """Return world sizes within `ranges` (role → minimum, maximum) for which `fits` is true.

    If all maximums fit, they are the answer. Otherwise roles grow from their minimum in turns, each
    to its next size that fits, until none can grow. If the minimums do not fit, they are the
    answer.
    """
    most = {role: high for role, (_, high) in ranges.items()}
    if fits(most):
        return most
    sizes = {role: low for role, (low, _) in ranges.items()}
    growing = list(ranges) if fits(sizes) else []
    while growing:
        for step in (1 << bit for bit in reversed(range(1, 14))):
            leap = sizes | {role: min(sizes[role] + step, most[role]) for role in growing}
            sizes = leap if fits(leap) else sizes
        for role in list(growing):
            larger = range(sizes[role] + 1, min(sizes[role] + GAP, most[role]) + 1)
            found = next((size for size in larger if fits({**sizes, role: size})), None)
            if found is None:
                growing.remove(role)
            sizes[role] = found or sizes[role]
    return sizes
