"""Strategies applied in order, each checked: what one decided stays, and what none decided goes to `pack`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.api.partition import Broadcast
from rolemesh.api.workload import NoOptions
from rolemesh.builtin.pack import PackScheduler
from rolemesh.errors import JobFileError, PlacementError, nearest, raise_all
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.placement import Flow, PlacementPlan, PlacementRequest, RoleRequest, Unplaced
from rolemesh.placement.chain import ask
from rolemesh.plugins.manager import JobPlugins
from rolemesh.plugins.select import Selection
from rolemesh.spec import JobFile

__all__ = ["Strategy", "check_placed", "check_strategies", "flows_of", "plan_job", "plan_selected", "request_of"]

Strategy: TypeAlias = Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None]
"""The hook `place` of one plugin."""
MOST_NODES = 64


def plan_selected(job: JobFile, selection: Selection, graph: LogicalGraph, cluster: ClusterView) -> PlacementPlan:
    """The plan of a traced job, by the strategies that its job file names. Ranks without a place are in `unplaced`."""
    plugins = JobPlugins()
    strategies: list[tuple[str, Strategy]] = []
    for index, selected in enumerate(selection.placement):
        name = f"{selected.record.name}#{index}"
        plugins.create(name, selected.record, selected.cls, selected.options, selected.where)

        def place(
            request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan, name: str = name
        ) -> PlacementPlan | None:
            answer: PlacementPlan | None = plugins.call(name, "place", request=request, cluster=cluster, plan=plan)
            return answer

        strategies.append((selected.record.name, place))
    try:
        return plan_job(request_of(job, selection, graph), cluster, strategies)
    except PlacementError as error:
        path = (error.where or "placement").split(".")
        error.where = job.where([int(part) if part.isdigit() else part for part in path])
        raise


def check_strategies(job: JobFile, selection: Selection, graph: LogicalGraph) -> None:
    """Raise `PlacementError` for what strategies find wrong with their options, whatever the cluster.

    They are asked to place the job where there is plenty of everything.
    """
    request = request_of(job, selection, graph)
    cpu = sum(role.world_size * role.cpu for role in request.roles) + 1
    gpu = sum(role.world_size * math.ceil(role.gpu) for role in request.roles)
    custom = {name: 1e9 for role in request.roles for name in role.custom}
    ranks = min(_count(request), MOST_NODES)
    nodes = (NodeView(f"node-{n}", cpu=cpu, gpu=gpu, custom=custom) for n in range(ranks))
    try:
        plan_selected(job, selection, graph, ClusterView(tuple(nodes)))
    except PlacementError as error:
        if ".options" in (error.where or ""):
            raise


def request_of(job: JobFile, selection: Selection, graph: LogicalGraph) -> PlacementRequest:
    """What the roles of a job ask for, and what flows between them.

    Raises `JobFileError` if ``edges.sizes`` names a call that the flow does not have.
    """
    roles = tuple(
        RoleRequest(
            name,
            role.world_size,
            role.resources.cpu,
            role.resources.gpu,
            dict(role.resources.custom),
            selection.roles[name].cls.group,
        )
        for name, role in job.spec.roles.items()
    )
    labels = {op.label: op.id for op in graph.ops}
    for label in job.spec.edges.sizes:
        if label not in labels:
            raise JobFileError(
                f"the flow has no call {label!r}",
                where=job.where(("edges", "sizes", label)),
                remedy=f"{nearest(label, labels)}; calls: {', '.join(labels)}",
            )
    known = {labels[label]: float(size) for label, size in job.spec.edges.sizes.items()}
    sizes = {edge.id: known[edge.src] for edge in graph.edges if edge.src in known}
    return PlacementRequest(roles, flows_of(graph, {role.role: role.world_size for role in roles}, sizes))


def flows_of(graph: LogicalGraph, world_sizes: Mapping[str, int], sizes: Mapping[int, float]) -> tuple[Flow, ...]:
    """What goes from role to role in a step; `sizes` are the bytes per step of edges, by their ids, as far as known.

    A value that every consumer gets whole counts once for each of them.
    """
    found: dict[tuple[str, str, str], float | None] = {}
    for edge in graph.edges:
        src, dst = graph.ops[edge.src].role, graph.ops[edge.dst].role
        if src == dst:
            continue
        m, n = world_sizes[src], world_sizes[dst]
        path = route(edge.src_partition, m, edge.dst_partition, n)
        everybody = m > 1 and all(len(path.sources(consumer)) == m for consumer in range(n))
        size = sizes.get(edge.id)
        if size is not None and isinstance(edge.dst_partition, Broadcast):
            size *= n
        key = (src, dst, "all" if everybody else "aligned")
        known = found.get(key, 0.0)
        found[key] = None if known is None or size is None else known + size
    return tuple(
        Flow(src, dst, "all" if pattern == "all" else "aligned", size) for (src, dst, pattern), size in found.items()
    )


def plan_job(
    request: PlacementRequest, cluster: ClusterView, strategies: Sequence[tuple[str, Strategy]]
) -> PlacementPlan:
    """Apply `strategies` (with their names) in order, then `pack` to the ranks that they left.

    In the plan every rank is either placed or unplaced. A strategy that returns a rank as `Unplaced` has judged it:
    `pack` leaves it so, because placing it otherwise would not be what the job file asks for.

    Raises `PlacementError`, naming the strategy, if one returns a plan that is not possible. Its `where` is a path in
    the job file: ``placement.1.use``, or ``placement.1.options.groups.0`` if the strategy has said ``groups.0``.
    """
    plan = PlacementPlan()
    for index, (name, strategy) in enumerate(strategies):
        try:
            plan = ask(name, strategy, request, cluster, plan)
        except PlacementError as error:
            option = f"options.{error.where}" if error.where and error.where != "placement" else "use"
            error.where = f"placement.{index}.{option}"
            raise
    if len(plan.placed()) + len(plan.unplaced) < _count(request) and (not strategies or strategies[-1][0] != "pack"):
        decided = len(plan.assignments)
        plan = ask("pack", PackScheduler(NoOptions()).place, request, cluster, plan)
        rest = tuple(
            msgspec.structs.replace(a, rule=a.rule.replace("pack:", "pack (default):", 1))
            for a in plan.assignments[decided:]
        )
        plan = msgspec.structs.replace(plan, assignments=plan.assignments[:decided] + rest)
    return plan


def check_placed(plan: PlacementPlan, job: JobFile | None = None) -> None:
    """Raise `PlacementError` (or `Problems`) with what is missing, role by role, unless every rank has a place.

    With `job` each says in which line of the job file its role is.
    """
    by_role: dict[str, list[Unplaced]] = {}
    for unplaced in plan.unplaced:
        by_role.setdefault(unplaced.role, []).append(unplaced)
    raise_all(
        [
            PlacementError(
                f"{_ranks(ranks)} cannot be placed: {'; '.join(dict.fromkeys(u.reason for u in ranks))}",
                where=job.where(("roles", role)) if job else f"role {role}",
                remedy=f"lower roles.{role}.world_size or roles.{role}.resources, share slots, or add nodes",
            )
            for role, ranks in by_role.items()
        ]
    )


def _ranks(ranks: Sequence[Unplaced]) -> str:
    numbers = ", ".join(str(unplaced.rank) for unplaced in ranks[:8]) + (", …" if len(ranks) > 8 else "")
    return f"rank {numbers}" if len(ranks) == 1 else f"{len(ranks)} ranks ({numbers})"


def _count(request: PlacementRequest) -> int:
    return sum(role.world_size for role in request.roles)
