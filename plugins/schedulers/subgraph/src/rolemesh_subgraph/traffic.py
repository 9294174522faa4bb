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
    - `unknown`: transfers without a size, which are in neither sum.

    Ranks without a place do not count.
    """

    total: float
    crossing: float
    unknown: int


def pairs(producers: int, consumers: int) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of ranks of an aligned transfer, with their share of it. The sum of the shares is 1.

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
    """Return the traffic of all transfers of known size."""
    sizes = {role.role: role.world_size for role in request.roles}
    node_of = {a.ref: plan.slots[a.slot].node for a in plan.assignments}
    on: dict[str, Counter[str]] = {}
    for (role, _), node in node_of.items():
        on.setdefault(role, Counter())[node] += 1
    total = cross = 0.0
    unknown = 0
    for transfer in request.transfers:
        if transfer.bytes is None:
            unknown += 1
            continue
        m, n = sizes[transfer.src], sizes[transfer.dst]
        if transfer.pattern == "aligned":
            for producer, consumer, share in pairs(m, n):
                ends = node_of.get((transfer.src, producer)), node_of.get((transfer.dst, consumer))
                if None not in ends:
                    total += transfer.bytes * share
                    cross += transfer.bytes * share * (ends[0] != ends[1])
        else:
            src, dst = on.get(transfer.src, Counter()), on.get(transfer.dst, Counter())
            each = transfer.bytes / (m * n)
            all_pairs = src.total() * dst.total()
            total += each * all_pairs
            cross += each * (all_pairs - sum(count * dst[node] for node, count in src.items()))
    return Traffic(total, cross, unknown)
