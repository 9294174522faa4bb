"""Which roles may leave out snapshots where their steps are short. Pure."""

from __future__ import annotations

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.calls import ways

__all__ = ["may_owe"]


def may_owe(graph: LogicalGraph, activity: Activity, role: str, *, together: bool = False) -> bool:
    """Whether a rank of `role` waits in no step but for its inputs, before its first operator begins, and for credits;
    and is asked nothing meanwhile. Then the state after a step is there until nothing keeps the rank from finishing the
    next one. Ranks of a group (`together`), which wait for credits before, agree at the barrier, so meet in each step.
    """
    ops = graph.of_role(role)
    if not ops or (together and not any(activity.always(op.id) for op in ops)):
        return False
    if any(op.streaming for op in ops) or any(role in (way.caller, way.callee) for way in ways(graph)):
        return False
    edges = [edge for edge in graph.edges if edge.dst in {op.id for op in ops}]
    partitions = {type(partition) for edge in edges for partition in (edge.src_partition, edge.dst_partition)}
    return Balanced not in partitions and all(edge.dst == ops[0].id and not edge.newest for edge in edges)
