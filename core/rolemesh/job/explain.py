"""A plan in words and numbers, as plain data: ``rolemesh plan`` shows it and ``plan.json`` stores
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import declared, describe, route
from rolemesh.graph.schedule import Activity
from rolemesh.job.prepared import Prepared
from rolemesh.job_file import JobFile, RoleSpec
from rolemesh.placement import PlacementPlan

OPERATOR = ("label", "role", "operator", "every", "at", "constants", "streaming", "where")
EDGE = ("param", "lag", "newest", "credits", "window")


def explain(prepared: Prepared, plan: PlacementPlan, cluster: ClusterView) -> dict[str, Any]:
    """Return the graph, the routes, and the place of each rank with its reason, as JSON values."""
    job = prepared.job
    graph = prepared.graph
    roles = {name: _role(job, name, role) for name, role in job.spec.roles.items()}
    activity = Activity(graph)
    order = list(roles)
    placed = [
        msgspec.to_builtins(each)
        | {
            "node": plan.slots[each.slot].node,
            "gpus": [gpu for gpu, _ in plan.slots[each.slot].gpus],
        }
        for each in sorted(plan.assignments, key=lambda a: (order.index(a.role), a.rank))
    ]
    told: dict[str, Any] = {"job": job.spec.name, "flow": graph.name, "steps": job.spec.steps}
    told |= {"roles": roles, "operators": [_operator(op, activity) for op in graph.ops]}
    told |= {"edges": [_edge(edge, graph, job.spec.roles) for edge in graph.edges], "ranks": placed}
    told |= {"slots": plan.slots, "nodes": cluster.nodes, "bundles": plan.bundles()}
    told |= {"unplaced": plan.unplaced, "constraints": [each.told() for each in plan.constraints]}
    plain: dict[str, Any] = msgspec.to_builtins(told, enc_hook=str)
    return plain


def _operator(op: OpCall, activity: Activity) -> dict[str, Any]:
    period = activity.periods[op.id]
    return {name: getattr(op, name) for name in OPERATOR} | {
        "first_step": period.first if period else None
    }


def _role(job: JobFile, name: str, role: RoleSpec) -> dict[str, Any]:
    """Return a role with its environment. Variables stay as they are written, because some are
    secrets."""
    environment = {
        key: value for key, value in job.raw["roles"][name]["runtime_env"].items() if value
    }
    asked = {"resources": role.resources.model_dump(), "runtime_env": environment}
    return {"use": role.use, "world_size": role.world_size, **asked}


def _edge(edge: Edge, graph: LogicalGraph, roles: Mapping[str, RoleSpec]) -> dict[str, Any]:
    src, dst = graph.ops[edge.src], graph.ops[edge.dst]
    m, n = roles[src.role].world_size, roles[dst.role].world_size
    path = route(edge.src_partition, m, edge.dst_partition, n)
    told = {"from": src.label, "to": dst.label}
    told["from_partition"] = describe(declared(edge.src_partition))
    told["to_partition"] = describe(edge.dst_partition)
    told["route"] = f"{path.kind} {m}→{n}"
    messages = sum(len(path.sources(consumer)) for consumer in range(n))
    return told | {"messages": messages} | {name: getattr(edge, name) for name in EDGE}
