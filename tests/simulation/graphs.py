"""The jobs that are simulated: the flow of a GRPO job in small, and random graphs beyond it."""

from __future__ import annotations

import random

from tests.simulation.model import Job, Kind

from rolemesh.api.partition import Broadcast, Partition, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall

__all__ = ["grpo", "random_job"]


def grpo(rng: random.Random, steps: int) -> Job:
    """data → rollout → reward → trainer, whose weights go back to the rollout, one step late or within the step."""
    lag, credits = rng.choice((0, 1, 1, 1, 2)), rng.choice((1, 2))
    split, whole = Split(), Broadcast()
    ops = (
        OpCall(0, "data", "next", "data.next", split),
        OpCall(1, "rollout", "generate", "rollout.generate", split),
        OpCall(2, "reward", "score", "reward.score", split, streaming=rng.random() < 0.5),
        OpCall(3, "trainer", "train", "trainer.train", None),
        OpCall(4, "trainer", "weights", "trainer.weights", whole),
        OpCall(5, "rollout", "load_weights", "rollout.load_weights", None, every=rng.choice((1, 1, 2))),
    )
    edges = (
        Edge(0, 0, 1, "prompts", split, split, 0, credits),
        Edge(1, 1, 2, "samples", split, split, 0, credits),
        Edge(2, 2, 3, "scored", split, split, 0, credits),
        Edge(3, 4, 5, "weights", whole, whole, lag, credits),
    )
    sizes = {"data": 1, "rollout": rng.choice((1, 1, 2)), "reward": rng.choice((1, 1, 2)), "trainer": 2}
    kinds: dict[str, Kind] = {"data": "source", "rollout": "stateless", "reward": "stateless", "trainer": "collective"}
    return Job(LogicalGraph("grpo", ops, edges), sizes, kinds, steps)


def random_job(rng: random.Random, steps: int) -> Job:
    """Two to four roles, two to six calls in the flow's order, and edges with and without lag between them."""
    roles = [f"r{i}" for i in range(rng.randint(2, 4))]
    kinds: dict[str, Kind] = {role: rng.choice(("stateless", "stateful", "collective")) for role in roles}
    kinds["r0"] = rng.choice(("source", "stateful", "stateless"))
    sizes = {role: rng.choice((1, 1, 2, 3)) if kinds[role] != "collective" else 2 for role in roles}
    callers = roles + [rng.choice(roles) for _ in range(rng.randint(0, 3))]
    rng.shuffle(callers)
    partitions: tuple[Partition, ...] = (Split(), Broadcast())
    returns: list[Partition | None] = [rng.choice((*partitions, *partitions, None)) for _ in callers]
    if all(r is None for r in returns):
        returns[0] = Split()
    edges: list[Edge] = []
    pairs: set[tuple[int, int]] = set()
    for dst in range(len(callers)):
        for src in rng.sample(range(len(callers)), min(2, len(callers))):
            makes = returns[src]
            if makes is None or rng.random() < 0.3 or (src, dst) in pairs:
                continue
            forward = src < dst and callers[src] != callers[dst]
            lag = rng.choice((0, 0, 1, 2)) if forward else rng.choice((1, 1, 2))
            takes = rng.choice(partitions)
            pairs.add((src, dst))
            edges.append(Edge(len(edges), src, dst, f"p{src}", makes, takes, lag, rng.choice((1, 2, 3))))
    fed = {edge.dst for edge in edges}
    ops = tuple(
        OpCall(
            i,
            role,
            f"op{i}",
            f"{role}.op{i}",
            returns[i],
            streaming=i in fed and rng.random() < 0.3,
            every=rng.choice((1, 1, 1, 2, 3)) if not any(e.src == i for e in edges) else 1,
        )
        for i, role in enumerate(callers)
    )
    return Job(LogicalGraph("random", ops, tuple(edges)), sizes, kinds, steps)
