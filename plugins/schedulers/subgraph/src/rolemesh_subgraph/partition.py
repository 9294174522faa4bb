"""Clusters of ranks, by heavy-edge agglomeration as in the coarsening of multilevel graph partitioners.

Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs", section 3.1: the
heaviest edges are contracted first. Here a cluster never grows beyond what fits on one node. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import product

from rolemesh import PlacementRequest
from rolemesh_subgraph.traffic import pairs

__all__ = ["Rank", "clusters", "edges"]

Rank = tuple[str, int]
PAIRS = 4096
"""Maximum number of pairs of an all-to-all transfer that are treated one by one."""
GROUP = 1e18
"""Bytes that count between ranks that must stay together. No edge has as many."""
UNKNOWN = 1.0
"""Bytes that count for a transfer of unknown size. It decides only between equals."""


def edges(request: PlacementRequest, together: Collection[str] = ()) -> list[tuple[float, Rank, Rank]]:
    """Return the bytes per step between pairs of ranks, the heaviest first.

    In an all-to-all transfer, such as weights, each pair gets its part of the bytes, unless there are more than `PAIRS`
    pairs; beyond that the parts are too small to matter. The ranks of a collective role are joined in a chain, before
    all others if the role is one of `together`.
    """
    sizes = {role.role: role.world_size for role in request.roles}
    weights: dict[tuple[Rank, Rank], float] = {}

    def add(one: Rank, other: Rank, weight: float) -> None:
        pair = (one, other) if one <= other else (other, one)
        weights[pair] = weights.get(pair, 0.0) + weight

    for transfer in request.transfers:
        size = UNKNOWN if transfer.bytes is None else transfer.bytes
        m, n = sizes[transfer.src], sizes[transfer.dst]
        if transfer.pattern == "aligned":
            for producer, consumer, share in pairs(m, n):
                add((transfer.src, producer), (transfer.dst, consumer), size * share)
        elif m * n <= PAIRS:
            for producer, consumer in product(range(m), range(n)):
                add((transfer.src, producer), (transfer.dst, consumer), size / (m * n))
    for role in request.roles:
        if role.group == "collective":
            for rank in range(1, role.world_size):
                weight = GROUP if role.role in together else UNKNOWN / role.world_size
                add((role.role, rank - 1), (role.role, rank), weight)
    return sorted(((weight, *pair) for pair, weight in weights.items()), key=lambda each: (-each[0], each[1:]))


def clusters(
    ranks: Iterable[Rank],
    weighted: Iterable[tuple[float, Rank, Rank]],
    needs: Mapping[str, Mapping[str, float]],
    room: Iterable[Mapping[str, float]],
) -> list[list[Rank]]:
    """Divide `ranks` into clusters that each fit on a node with one of the given amounts of `room`, by the heaviest
    edges first.

    `needs` are per rank, by role. Clusters come in the order of their first rank.
    """
    order = list(ranks)
    home = {rank: rank for rank in order}
    members = {rank: [rank] for rank in order}
    taken = {rank: dict(needs[rank[0]]) for rank in order}
    nodes = list({tuple(sorted(node.items())): dict(node) for node in room}.values())

    def of(rank: Rank) -> Rank:
        while home[rank] != rank:
            home[rank] = home[home[rank]]
            rank = home[rank]
        return rank

    for _, one, other in weighted:
        if one not in home or other not in home:
            continue
        a, b = of(one), of(other)
        if a == b:
            continue
        both = {name: taken[a].get(name, 0.0) + taken[b].get(name, 0.0) for name in taken[a].keys() | taken[b].keys()}
        if any(all(amount <= node.get(name, 0.0) + 1e-9 for name, amount in both.items()) for node in nodes):
            home[b] = a
            taken[a] = both
            members[a] += members.pop(b)
    position = {rank: i for i, rank in enumerate(order)}
    found = [sorted(cluster, key=position.__getitem__) for cluster in members.values()]
    return sorted(found, key=lambda cluster: position[cluster[0]])
