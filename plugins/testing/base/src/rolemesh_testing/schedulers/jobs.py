"""Jobs and clusters for placement strategies, drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.placement import Apart, Constraint, PlacementRequest, RoleRequest, Spread, Transfer, Within

__all__ = ["cluster", "constraints", "request"]

CUSTOM = "disk"
"""A resource that is neither cores nor GPUs."""


def request(random: Random, roles: Sequence[str], most: int = 4) -> PlacementRequest:
    """Draw a job of all of `roles`, in any order, with 1 to `most` ranks each, and transfers between some of them.

    Half of the jobs have the same number of ranks in all roles. Ranks need cores, whole GPUs or fractions, and some a
    custom resource.
    """
    order = random.sample(list(roles), len(roles))
    same, size = random.choice((True, False)), random.randint(1, most)
    asked = tuple(
        RoleRequest(
            role,
            size if same else random.randint(1, most),
            random.choice((1.0, 1.0, 0.5, 0.0, 2.0)),
            random.choice((0.0, 0.0, 0.0, 1.0, 0.25, 0.5, 1.5, 2.0)),
            random.choice(({}, {}, {}, {CUSTOM: 1.0}, {CUSTOM: 0.5})),
            random.choice(("independent", "collective")),
        )
        for role in order
    )
    pairs = [(src, dst) for src in roles for dst in roles if src != dst]
    transfers = tuple(
        Transfer(src, dst, random.choice(("aligned", "all")), random.choice((None, 1.0, float(1 << 30))))
        for src, dst in random.sample(pairs, min(len(pairs), random.randint(0, 3)))
    )
    return PlacementRequest(asked, transfers)


def cluster(random: Random, labels: Mapping[str, Sequence[str]], most: int = 5) -> ClusterView:
    """Draw a cluster of 1 to `most` nodes, equal or not, some with GPUs, and with some of `labels` (values by name)."""

    def node(number: int) -> NodeView:
        return NodeView(
            f"node-{number}",
            cpu=random.choice((4.0, 16.0, 0.0, 1.0, 2.5)),
            gpu=random.choice((4, 8, 0, 1, 2)),
            custom=random.choice(({CUSTOM: 4.0}, {}, {CUSTOM: 1.0})),
            labels={name: random.choice(values) for name, values in labels.items() if random.randint(0, 3)},
        )

    count = random.randint(1, most)
    if random.choice((True, False)):
        first = node(0)
        return ClusterView(
            tuple(
                NodeView(f"node-{number}", first.host, first.cpu, first.gpu, dict(first.custom), dict(first.labels))
                for number in range(count)
            )
        )
    return ClusterView(tuple(node(number) for number in range(count)))


def constraints(random: Random, roles: Sequence[str], labels: Mapping[str, Sequence[str]]) -> tuple[Constraint, ...]:
    """Draw one or two constraints on `roles`, as an earlier strategy called ``"kit"`` would add them."""
    wide = ("node", *(f"label.{name}" for name in labels))

    def constraint() -> Constraint:
        kind = random.choice(("apart", "spread", "within"))
        if kind == "apart" and len(roles) > 1:
            left, right = random.sample(list(roles), 2)
            return Apart("kit", (left,), (right,), random.choice((*wide, "device")))
        if kind == "within" and labels:
            name = random.choice(sorted(labels))
            return Within("kit", random.choice(list(roles)), ((name, random.choice(list(labels[name]))),))
        return Spread("kit", random.choice(list(roles)), random.randint(1, 3), random.choice(wide))

    return tuple(dict.fromkeys(constraint() for _ in range(random.randint(1, 2))))
