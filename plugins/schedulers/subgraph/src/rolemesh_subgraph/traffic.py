"""The traffic between ranks that crosses nodes under a plan. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from rolemesh.placement import PlacementPlan, PlacementRequest


class Traffic(msgspec.Struct, frozen=True):
    """Bytes per step.

    - `total`: between different ranks.
    - `crossing`: part of `total` that goes from node to node.
    - `unknown`: flows without a size, which are in neither sum.

    Ranks without a place do not count.
    """

    total: float
    crossing: float
    unknown: int


def pairs(producers: int, consumers: int) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of ranks of an aligned flow, with their share of it. The sum of the shares is 1.

    Rank i of m has the i-th m-th of the rows, and rank j of n takes the j-th n-th of them.
    """
    rows = producers * consumers
    producer = consumer = at = 0
    while at < rows:
        until = min((producer + 1) * consumers, (consumer + 1) * producers)
        yield producer, consumer, (until - at) / rows
        at = until
        producer, consumer = at // consumers, at // producers


def crossing(request: PlacementRequest, plan: PlacementPlan) -> Traffic:
    """Return the traffic of all flows of known size."""
    sizes = {role.role: role.world_size for role in request.roles}
    node_of = {a.ref: plan.slots[a.slot].node for a in plan.assignments}
    on: dict[str, Counter[str]] = {}
    for (role, _), node in node_of.items():
        on.setdefault(role, Counter())[node] += 1
    total = cross = 0.0
    unknown = 0
    for flow in request.flows:
        if flow.bytes is None:
            unknown += 1
            continue
        m, n = sizes[flow.src], sizes[flow.dst]
        if flow.pattern == "aligned":
            for producer, consumer, share in pairs(m, n):
                ends = node_of.get((flow.src, producer)), node_of.get((flow.dst, consumer))
                if None not in ends:
                    total += flow.bytes * share
                    cross += flow.bytes * share * (ends[0] != ends[1])
        else:
            src, dst = on.get(flow.src, Counter()), on.get(flow.dst, Counter())
            each = flow.bytes / (m * n)
            all_pairs = src.total() * dst.total()
            total += each * all_pairs
            cross += each * (all_pairs - sum(count * dst[node] for node, count in src.items()))
    return Traffic(total, cross, unknown)
