"""Which roles may leave out snapshots where their steps are short, and which ones those are. Pure."""

from __future__ import annotations

import math
from typing import Final

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.schedule import Activity
from rolemesh_durable.protocol.calls import ways

__all__ = ["apart_s", "may_owe", "must_persist"]

PAUSES: Final = 100
"""So many times what a snapshot takes passes between two of them: they take a hundredth of the time."""
FAILURES_S: Final = 86_400.0
"""A job that has not failed yet is taken for one that does so once a day."""


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


def apart_s(pause_s: float, most_s: float | None, failures_s: float = 0.0) -> float:
    """The seconds between two snapshots that take `pause_s` each: a hundred times that, or `most_s`.

    If that is None, less where failures come often: with `failures_s` between them (0: none has come yet) what
    snapshots and failures cost together is least at sqrt(2 * pause * failures). (Young 1974, "A first order
    approximation to the optimum checkpoint interval".)
    """
    if most_s is None:
        most_s = math.sqrt(2 * pause_s * (failures_s or FAILURES_S))
    return min(PAUSES * pause_s, most_s)


def must_persist(step: int, persist_every: int, apart: float) -> bool:
    """Whether the snapshot of `step`, one of those that go to disk, is taken even if the last one was just now, by a
    rank whose snapshots are `apart` steps apart. A checkpoint needs one step from all ranks: each takes those that more
    powers of two divide, as many as it can, so they have in common what the one with the fewest takes (see
    `protocol.persisting`)."""
    number = (step + 1) // persist_every
    return (number & -number) * persist_every >= apart
