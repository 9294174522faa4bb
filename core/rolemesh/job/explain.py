"""A plan in words and numbers, as plain data: what ``rolemesh plan`` shows and ``plan.json`` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import describe, route
from rolemesh.graph.schedule import Activity
from rolemesh.placement import PlacementPlan, PlacementRequest, crossing
from rolemesh.placement import describe as describe_constraint
from rolemesh.spec import JobFile, RoleSpec

__all__ = ["explain"]


def explain(
    job: JobFile,
    graph: LogicalGraph,
    plan: PlacementPlan,
    cluster: ClusterView,
    request: PlacementRequest,
    by_role: PlacementPlan | None = None,
) -> dict[str, Any]:
    """The graph, the routes, where each rank goes and why, and what crosses nodes, as JSON values.

    `by_role` is a plan to compare with: what crosses nodes if the roles are packed one after the other.
    """
    roles: dict[str, Any] = {
        name: {
            "use": role.use,
            "world_size": role.world_size,
            "resources": role.resources.model_dump(),
            "runtime_env": _environment(job, name),
        }
        for name, role in job.spec.roles.items()
    }
    activity = Activity(graph)
    placed: list[dict[str, Any]] = []
    for assignment in sorted(plan.assignments, key=lambda a: (list(roles).index(a.role), a.rank)):
        slot = plan.slots[assignment.slot]
        placed.append(msgspec.to_builtins(assignment) | {"node": slot.node, "gpus": [index for index, _ in slot.gpus]})
    result: dict[str, Any] = {
        "job": job.spec.name,
        "flow": graph.name,
        "steps": job.spec.steps,
        "roles": roles,
        "operators": [
            {
                "label": op.label,
                "role": op.role,
                "operator": op.operator,
                "every": op.every,
                "at": op.at,
                "first_step": period.first if (period := activity.periods[op.id]) else None,
                "constants": op.constants,
                "streaming": op.streaming,
                "where": op.where,
            }
            for op in graph.ops
        ],
        "edges": [_edge(edge, graph, job.spec.roles) for edge in graph.edges],
        "ranks": placed,
        "slots": plan.slots,
        "nodes": cluster.nodes,
        "bundles": plan.bundles(),
        "unplaced": plan.unplaced,
        "constraints": [describe_constraint(constraint) for constraint in plan.constraints],
        "traffic": _traffic(request, plan, by_role),
    }
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


def _environment(job: JobFile, role: str) -> dict[str, Any]:
    """What the role asks for beyond what all have, with variables as they are written: some are secrets."""
    written: dict[str, Any] = job.raw["roles"][role]["runtime_env"]
    return {key: value for key, value in written.items() if value}


def _traffic(request: PlacementRequest, plan: PlacementPlan, by_role: PlacementPlan | None) -> dict[str, Any]:
    """Bytes per step between ranks: all, those that cross nodes, and those that would if roles were packed."""
    found = crossing(request, plan)
    known: dict[str, Any] = {"total": found.total, "crossing": found.crossing, "unknown_flows": found.unknown}
    if by_role is not None:
        known["crossing_by_role"] = crossing(request, by_role).crossing
    return known


def _edge(edge: Edge, graph: LogicalGraph, roles: Mapping[str, RoleSpec]) -> dict[str, Any]:
    src, dst = graph.ops[edge.src], graph.ops[edge.dst]
    m, n = roles[src.role].world_size, roles[dst.role].world_size
    path = route(edge.src_partition, m, edge.dst_partition, n)
    return {
        "from": src.label,
        "to": dst.label,
        "param": edge.param,
        "from_partition": describe(edge.src_partition),
        "to_partition": describe(edge.dst_partition),
        "route": f"{path.kind} {m}→{n}",
        "messages": sum(len(path.sources(consumer)) for consumer in range(n)),
        "lag": edge.lag,
        "credits": edge.credits,
        "window": edge.window,
    }
