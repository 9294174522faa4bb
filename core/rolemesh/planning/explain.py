"""A plan in words and numbers, as plain data: what ``rolemesh plan`` shows and ``plan.json`` keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rolemesh.cluster import ClusterView
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import describe, route
from rolemesh.graph.schedule import Activity
from rolemesh.placement import PlacementPlan
from rolemesh.spec import JobFile, RoleSpec

__all__ = ["explain"]


def explain(job: JobFile, graph: LogicalGraph, plan: PlacementPlan, cluster: ClusterView) -> dict[str, Any]:
    """The graph, the routes, and where each rank goes and why, as JSON values."""
    roles: dict[str, Any] = {
        name: {"use": role.use, "world_size": role.world_size, "resources": role.resources.model_dump()}
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
                "first_step": rhythm.first if (rhythm := activity.rhythms[op.id]) else None,
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
    }
    plain: dict[str, Any] = msgspec.to_builtins(result)
    return plain


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
        "messages": sum(len(sources) for sources in path.sources),
        "lag": edge.lag,
        "credits": edge.credits,
        "window": edge.window,
    }
