"""Loads of jobs for scalers, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rolemesh.api.observer import StepMetrics
from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad

__all__ = ["large", "load"]

SHARES = (0.0, 0.01, 0.3, 0.5, 0.7, 0.95, 1.0)


def load(random: Random, roles: Sequence[str]) -> Load:
    """Draw the load of a job of some of `roles`, with or without a range and free resources, on edges with and without
    lag.
    """
    chosen = roles[: random.randint(1, len(roles))]
    found = []
    for role in chosen:
        least, ranks, most = sorted(random.randint(1, 16) for _ in range(3))
        if random.random() < 0.3:
            least = most = ranks
        found.append(RoleLoad(role, ranks, least, most, ranks + random.choice((0, 0, 1, 40)), random.choice(SHARES)))
    pairs = [(a, b) for a in chosen for b in chosen if a != b]
    edges = []
    for producer, consumer in random.sample(pairs, random.randint(0, min(6, len(pairs)))):
        waiting, blocked = random.choice(SHARES), random.choice(SHARES)
        edges.append(EdgeLoad(producer, consumer, f"{consumer}.call", "rows", waiting, blocked, random.choice((0, 1))))
    window_s, now = random.choice((0.5, 10.0, 600.0)), random.uniform(0.0, 2e9)
    count = random.choice((0, 1, 5))
    lines = tuple(
        StepMetrics(step, 1, now - count + step, values={"loss": random.choice((0.5, 100.0))} if step else {})
        for step in range(count)
    )
    return Load(window_s, random.choice((0.0, 60.0, 1e6)), tuple(found), tuple(edges), now, lines, "runs/drawn")


def large(count: int = 60) -> Load:
    """Return a job of `count` roles in a ring, with the largest number of metrics. Each role waits for the one before
    it.
    """
    names = [f"role-{number}" for number in range(count)]
    roles = tuple(RoleLoad(name, 8, 1, 64, 64, 0.9) for name in names)
    edges = tuple(
        EdgeLoad(names[at - 1], name, f"{name}.call", "rows", 0.4, 0.1, int(at == 0)) for at, name in enumerate(names)
    )
    lines = tuple(StepMetrics(step, 1, step / 100, values={"loss": 1.0, "reward": 0.5}) for step in range(1000))
    return Load(10.0, 600.0, roles, edges, 10.0, lines, "runs/large")
