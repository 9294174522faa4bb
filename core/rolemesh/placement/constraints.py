"""What strategies demand of one another: which ranks may not be near, or where a role may be. Plain data.

A *domain* is a part of the cluster: ``node``, ``device`` (one GPU), or ``label.NAME``, which is all nodes with the same
value of that label. A node without the label is in no such domain, so a rank bound to one cannot be there.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from rolemesh.api.cluster import NodeView


class Apart(msgspec.Struct, frozen=True, tag=True):
    """No rank of the roles `left` is in the same domain as a rank of the roles `right`. `by` is the strategy's name."""

    by: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    domain: str = "node"


class Spread(msgspec.Struct, frozen=True, tag=True):
    """At most `most` ranks of `role` are in one domain."""

    by: str
    role: str
    most: int = 1
    domain: str = "node"


class Within(msgspec.Struct, frozen=True, tag=True):
    """The ranks of `role` are on nodes that have all of these labels."""

    by: str
    role: str
    labels: tuple[tuple[str, str], ...]


Constraint: TypeAlias = Apart | Spread | Within


def domain_of(node: NodeView, domain: str) -> str | None:
    """Which domain a node is in (for ``device``: the node); None if it lacks the label."""
    if domain.startswith("label."):
        return node.labels.get(domain.removeprefix("label."))
    return node.id


def describe(constraint: Constraint) -> str:
    """What it demands, in words that name the strategy."""
    match constraint:
        case Apart(by, left, right, domain):
            return f"{by} keeps {' and '.join(left)} apart from {' and '.join(right)} (by {_word(domain)})"
        case Spread(by, role, most, domain):
            return f"{by} allows {most} rank{'s' if most > 1 else ''} of {role} per {_word(domain)}"
        case Within(by, role, labels):
            return f"{by} wants {role} on nodes with {', '.join(f'{name}={value}' for name, value in labels)}"


def _word(domain: str) -> str:
    return domain.removeprefix("label.") if domain != "device" else "GPU"
