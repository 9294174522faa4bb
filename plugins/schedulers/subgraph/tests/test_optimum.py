"""Beside `pack`, which it is never worse than, and beside the best that there is, where all plans can be tried."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from rolemesh import PlacementRequest, RoleRequest
from rolemesh.api.plugin import NoOptions
from rolemesh.job.planning import plan_job
from rolemesh.placement import Transfer
from rolemesh.placement.nodes import parse_nodes
from rolemesh_pack import PackScheduler
from rolemesh_subgraph import SubgraphOptions, SubgraphScheduler, crossing
from rolemesh_subgraph.traffic import pairs

SUBGRAPH = SubgraphScheduler(SubgraphOptions())
PACK = PackScheduler(NoOptions())
WITHIN = 1.2
"""Maximum ratio to the optimum, on at most twelve ranks."""


def drawn(seed: int, most: int) -> tuple[PlacementRequest, str]:
    """A job of `most` ranks at most, with transfers of both patterns, and a cluster that it just fills."""
    rng = random.Random(seed)
    roles: list[RoleRequest] = []
    while (left := most - sum(role.world_size for role in roles)) > 0 and len(roles) < 5:
        size = rng.randint(1, max(1, min(left, most // 2)))
        group = rng.choice(["independent", "collective"])
        roles.append(RoleRequest(f"role{len(roles)}", size, cpu=rng.choice([1, 1, 2]), group=group))  # type: ignore[arg-type]
    ends = [(a.role, b.role) for a, b in product(roles, roles) if a is not b]
    chosen = rng.sample(ends, min(len(ends), rng.randint(2, 6)))
    transfers = tuple(
        Transfer(*pair, rng.choice(["aligned", "all"]), float(rng.choice([1, 10, 200, 1000]) * 1_000_000))  # type: ignore[arg-type]
        for pair in chosen
    )
    needed = sum(role.world_size * role.cpu for role in roles)
    nodes = rng.randint(2, 3)
    each = -(-needed // nodes) + rng.randint(1, 2)
    return PlacementRequest(tuple(roles), transfers), f"{nodes}x(cpu={each:g})"


def least(request: PlacementRequest, cluster: str) -> float:
    """The fewest bytes that cross in any plan that fits, and leaves collective roles together that `pack` would: all of
    them are tried."""
    nodes = parse_nodes(cluster).nodes
    ranks = [(role, rank) for role in request.roles for rank in range(role.world_size)]
    number = {(role.role, rank): i for i, (role, rank) in enumerate(ranks)}
    plans = np.indices((len(nodes),) * len(ranks), dtype=np.int8).reshape(len(ranks), -1)
    fits = np.ones(plans.shape[1], bool)
    for index, node in enumerate(nodes):
        fits &= sum((plans[i] == index) * role.cpu for i, (role, _) in enumerate(ranks)) <= node.cpu
    packed = plan_job(request, parse_nodes(cluster), [("pack", PACK.place)])
    for role in request.roles:
        if role.group == "collective" and len({packed.node_of(role.role, r) for r in range(role.world_size)}) == 1:
            for rank in range(1, role.world_size):
                fits &= plans[number[role.role, rank]] == plans[number[role.role, 0]]
    plans = plans[:, fits]
    cost = np.zeros(plans.shape[1])
    for transfer in request.transfers:
        m, n = (request.role(name).world_size for name in (transfer.src, transfer.dst))
        shares = (
            pairs(m, n) if transfer.pattern == "aligned" else ((i, j, 1 / (m * n)) for i in range(m) for j in range(n))
        )
        for i, j, share in shares:
            cost += (transfer.bytes or 0) * share * (plans[number[transfer.src, i]] != plans[number[transfer.dst, j]])
    return float(cost.min())


def crossed(name: str, request: PlacementRequest, cluster: str) -> float:
    strategy = SUBGRAPH if name == "subgraph" else PACK
    plan = plan_job(request, parse_nodes(cluster), [(name, strategy.place)])
    assert not plan.unplaced
    return crossing(request, plan).crossing


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 50))]


@pytest.mark.parametrize("seed", SEEDS)
def test_on_twelve_ranks_it_is_within_a_fifth_of_the_optimum(seed: int) -> None:
    request, cluster = drawn(seed, 10 if seed < 4 else 12)
    assert crossed("subgraph", request, cluster) <= WITHIN * least(request, cluster) + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_no_more_crosses_than_if_roles_were_packed(seed: int) -> None:
    request, cluster = drawn(seed, 40)
    assert crossed("subgraph", request, cluster) <= crossed("pack", request, cluster) + 1
