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
    placed: list[dict[str, Any]] = []
    for assignment in sorted(plan.assignments, key=lambda a: (order.index(a.role), a.rank)):
        slot = plan.slots[assignment.slot]
        placed.append(
            msgspec.to_builtins(assignment)
            | {"node": slot.node, "gpus": [index for index, _ in slot.gpus]}
        )
    result: dict[str, Any] = {
        "job": job.spec.name,
        "flow": graph.name,
        "steps": job.spec.steps,
        "roles": roles,
    }
    result["operators"] = [_operator(op, activity) for op in graph.ops]
    result["edges"] = [_edge(edge, graph, job.spec.roles) for edge in graph.edges]
    result |= {
        "ranks": placed,
        "slots": plan.slots,
        "nodes": cluster.nodes,
        "bundles": plan.bundles(),
    }
    result |= {
        "unplaced": plan.unplaced,
        "constraints": [constraint.told() for constraint in plan.constraints],
    }
    plain: dict[str, Any] = msgspec.to_builtins(result, enc_hook=str)
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
    src = graph.ops[edge.src]
    dst = graph.ops[edge.dst]
    m = roles[src.role].world_size
    n = roles[dst.role].world_size
    path = route(edge.src_partition, m, edge.dst_partition, n)
    made = declared(edge.src_partition)
    wanted = edge.dst_partition
    partitions = {"from_partition": describe(made), "to_partition": describe(wanted)}
    messages = sum(len(path.sources(consumer)) for consumer in range(n))
    told = {
        "from": src.label,
        "to": dst.label,
        **partitions,
        "route": f"{path.kind} {m}→{n}",
        "messages": messages,
    }
    return told | {name: getattr(edge, name) for name in EDGE}
