"""What strategies demand of one another: which ranks may not be near, or where a role may be.

A strategy may bring constraints of its own: a class that derives from `Constraint`, data and two
pure methods. The three that are here are written the same way.

A *domain* is a part of the cluster: ``node``, ``device`` (one GPU), or ``label.NAME``, which is all
nodes with the same value of that label. A node without the label is in no such domain, so a rank
bound to one cannot be there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.errors import PlacementError
from rolemesh.placement.plan import Slot

Ranks: TypeAlias = Mapping[str, Collection[int]]
"""Ranks by role."""


class Placed:
    """What is placed so far: how many ranks of each role there are in each domain.

    `nodes` are those of the cluster by id, `left` is how many ranks of a role have no place yet,
    and may get one.
    """

    def __init__(self, cluster: ClusterView, sizes: Mapping[str, int]) -> None:
        self.nodes = {node.id: node for node in cluster.nodes}
        self.left = Counter(sizes)
        self._in: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._on: defaultdict[str, defaultdict[int, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def domains(self, domain: str) -> dict[str, Counter[str]]:
        """The cluster's domains of this sort by name, and in each how many ranks of which role
        there are."""
        found = (domain_of(node, domain) for node in self.nodes.values())
        return {where: self._in[domain, where] for where in found if where is not None}

    def here(self, domain: str, node: NodeView) -> Counter[str] | None:
        """How many ranks of which role are in the domain of `node`; None if it is in none."""
        where = domain_of(node, domain)
        return None if where is None else self._in[domain, where]

    def on_devices(self, node: NodeView) -> Mapping[int, Counter[str]]:
        """How many ranks of which role are on each GPU of `node`."""
        return self._on[node.id]

    def add(self, role: str, slot: Slot, count: int = 1) -> None:
        """A rank is on `slot`; with a `count` of -1 it is not after all."""
        self.left[role] -= count
        self._in["node", slot.node][role] += count
        for label, value in self.nodes[slot.node].labels.items():
            self._in[f"label.{label}", value][role] += count
        for index, _ in slot.gpus:
            self._on[slot.node][index][role] += count


class Constraint(msgspec.Struct, frozen=True, tag=True):
    """Base of constraints. `by` is the strategy's name.

    Fields are plain data: a constraint travels with its plan, to the master and into its journal,
    by its `tag`, which is the name of its class unless it gives another (``class Skew(Constraint,
    tag="my-plugin.Skew")``).
    """

    by: str
    lasting: ClassVar[bool] = False
    """True if a placement that this constraint forbids stays forbidden as more ranks are placed.
    The builder then skips nodes that already failed."""

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """Whether these ranks, which are to share a slot, must not be on `node`, beside what is
        `placed`.

        Of a finished plan it is asked for each slot as if its ranks were placed last.
        """
        raise NotImplementedError

    def told(self) -> str:
        """What it demands, in words that name the strategy."""
        raise NotImplementedError

    def devices(self, ranks: Ranks, node: NodeView, placed: Placed) -> Collection[int]:
        """The GPUs of `node` that these ranks must not use."""
        return ()

    @classmethod
    def tagged(cls, tag: object) -> list[type[Constraint]]:
        """The classes of constraints with this tag that this process has imported."""
        below = [each for derived in cls.__subclasses__() for each in derived.tagged(tag)]
        return [cls, *below] if cls.__struct_config__.tag == tag else below


class Apart(Constraint, frozen=True):
    """No rank of the roles `left` is in the same domain as a rank of the roles `right`."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    domain: str = "node"
    lasting = True

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """See `Constraint`."""
        ours = ranks.keys() & self.left
        theirs = ranks.keys() & self.right
        if ours and theirs:
            return True
        if not (ours or theirs) or self.domain == "device":
            return False
        here = placed.here(self.domain, node)
        return here is None or any(here[role] for role in (self.right if ours else self.left))

    def told(self) -> str:
        """See `Constraint`."""
        left = " and ".join(self.left)
        right = " and ".join(self.right)
        return f"{self.by} keeps {left} apart from {right} (by {_word(self.domain)})"

    def devices(self, ranks: Ranks, node: NodeView, placed: Placed) -> Collection[int]:
        """See `Constraint`."""
        if self.domain != "device":
            return ()
        pairs = (self.left, self.right), (self.right, self.left)
        enemies = {
            role for ours, theirs in pairs if not ranks.keys().isdisjoint(ours) for role in theirs
        }
        return [
            index
            for index, there in placed.on_devices(node).items()
            if any(there[role] for role in enemies)
        ]


class Spread(Constraint, frozen=True):
    """At most `most` ranks of `role` are in one domain."""

    role: str
    most: int = 1
    domain: str = "node"
    lasting = True

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """See `Constraint`."""
        here = placed.here("node" if self.domain == "device" else self.domain, node)
        count = len(ranks.get(self.role, ()))
        return bool(count) and (here is None or here[self.role] + count > self.most)

    def told(self) -> str:
        """See `Constraint`."""
        return (
            f"{self.by} allows {self.most} rank{'s' * (self.most > 1)} of {self.role} "
            f"per {_word(self.domain)}"
        )


class Within(Constraint, frozen=True):
    """The ranks of `role` are on nodes that have all of these labels."""

    role: str
    labels: tuple[tuple[str, str], ...]
    lasting = True

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """See `Constraint`."""
        return self.role in ranks and any(
            node.labels.get(name) != value for name, value in self.labels
        )

    def told(self) -> str:
        """See `Constraint`."""
        return (
            f"{self.by} wants {self.role} on nodes with "
            f"{', '.join(f'{k}={v}' for k, v in self.labels)}"
        )


def revived(data: Any) -> Any:
    """The `Constraint` that `data` encodes, if its class is imported here; anything else
    unchanged."""
    found = Constraint.tagged(data.get("type")) if isinstance(data, dict) else ()
    return msgspec.convert(data, found[0]) if found else data


def judged(
    constraint: Constraint, ranks: Ranks, node: NodeView, placed: Placed
) -> tuple[bool, frozenset[int]]:
    """Whether it forbids these ranks there, and which GPUs it keeps them from; see `Constraint`.

    Raises `PlacementError` that names it and its strategy for an exception in it, and for an answer
    that is none.
    """
    try:
        if (no := constraint.forbids(ranks, node, placed)) not in (True, False):
            raise TypeError(f"forbids() returned {no!r}")
        return bool(no), frozenset(constraint.devices(ranks, node, placed))
    except Exception as error:
        raise faulty(constraint, f"failed: {type(error).__name__}: {error}") from error


def faulty(constraint: Constraint, why: str) -> PlacementError:
    """The error for a constraint that does something else than it must."""
    cls = type(constraint)
    remedy = f"report it to the author of {constraint.by}"
    return PlacementError(
        f"{constraint.by}'s constraint {cls.__module__}.{cls.__name__} {why}", remedy=remedy
    )


def domain_of(node: NodeView, domain: str) -> str | None:
    """Which domain a node is in (for ``device``: the node); None if it lacks the label."""
    return (
        node.labels.get(domain.removeprefix("label.")) if domain.startswith("label.") else node.id
    )


def _word(domain: str) -> str:
    return domain.removeprefix("label.") if domain != "device" else "GPU"
