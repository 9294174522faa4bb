"""The file ``plan.json`` of a job whose ranks have moved, or whose roles have other numbers of ranks now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.placement import PlacementPlan
from rolemesh.runs.run import write_json

__all__ = ["present_plan", "renew_plan"]


def renew_plan(
    path: Path, plan: PlacementPlan | None, sizes: Mapping[str, int], graph: LogicalGraph, after: int
) -> None:
    """Let the file at `path` show the present `plan` and the present number of ranks of each role.

    `after` is the step from which on these numbers hold; -1: since the start. Does nothing without a file, or if `plan`
    is None: the job has its first plan.
    """
    if plan is not None and path.exists():
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        write_json(path, present_plan(told, plan, sizes, graph, after))


def present_plan(
    told: Mapping[str, Any], plan: PlacementPlan, sizes: Mapping[str, int], graph: LogicalGraph, after: int
) -> dict[str, Any]:
    """Return the content of ``plan.json``, which was `told` before: see `renew_plan`."""
    order = list(told["roles"])
    ranks = [
        msgspec.to_builtins(each) | {"node": (slot := plan.slot(each.slot)).node, "gpus": [gpu for gpu, _ in slot.gpus]}
        for each in sorted(plan.assignments, key=lambda each: (order.index(each.role), each.rank))
    ]
    edges = []
    for before, edge in zip(told["edges"], graph.edges, strict=True):
        m, n = sizes[graph.ops[edge.src].role], sizes[graph.ops[edge.dst].role]
        path = route(edge.src_partition, m, edge.dst_partition, n)
        messages = sum(len(path.sources(consumer)) for consumer in range(n))
        edges.append(before | {"route": f"{path.kind} {m}→{n}", "messages": messages})
    roles = {name: role | {"world_size": sizes[name]} for name, role in told["roles"].items()}
    now = {"roles": roles, "edges": edges, "ranks": ranks, "slots": plan.slots, "bundles": plan.bundles()}
    plain: dict[str, Any] = msgspec.to_builtins(
        {**told, **now, "unplaced": plan.unplaced, "after_step": after}, enc_hook=str
    )
    return plain
