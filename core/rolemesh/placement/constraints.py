"""Constraints: demands of one strategy that later strategies must obey, such as ranks that must
stay apart.

A strategy may define constraints of its own: a class that derives from `Constraint`, with plain
data and two pure methods. The three classes here have the same form.

A *domain* is a part of the cluster: ``node``, ``device`` (one GPU), or ``label.NAME``, which is all
nodes with the same value of that label. A node without the label is in no such domain, so a rank
that needs one cannot be placed there.
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
    """The placement so far: the number of ranks of each role in each domain.

    - `nodes`: the nodes of the cluster, by id.
    - `left`: number of ranks of each role that are not placed yet but may be.
    """

    def __init__(self, cluster: ClusterView, sizes: Mapping[str, int]) -> None:
        self.nodes = {node.id: node for node in cluster.nodes}
        self.left = Counter(sizes)
        self._in: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._on: defaultdict[str, defaultdict[int, Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )

    def domains(self, domain: str) -> dict[str, Counter[str]]:
        """Return the domains of this type by name, each with its number of ranks by role."""
        found = (domain_of(node, domain) for node in self.nodes.values())
        return {where: self._in[domain, where] for where in found if where is not None}

    def here(self, domain: str, node: NodeView) -> Counter[str] | None:
        """Return the number of ranks by role in the domain of `node`; None if the node is in
        none."""
        where = domain_of(node, domain)
        return None if where is None else self._in[domain, where]

    def on_devices(self, node: NodeView) -> Mapping[int, Counter[str]]:
        """Return the number of ranks by role on each GPU of `node`."""
        return self._on[node.id]

    def add(self, role: str, slot: Slot, count: int = 1) -> None:
        """Add `count` ranks of `role` on `slot`. A `count` of -1 removes one."""
        self.left[role] -= count
        self._in["node", slot.node][role] += count
        for label, value in self.nodes[slot.node].labels.items():
            self._in[f"label.{label}", value][role] += count
        for index, _ in slot.gpus:
            self._on[slot.node][index][role] += count


class Constraint(msgspec.Struct, frozen=True, tag=True):
    """Base class of constraints. `by` is the name of the strategy.

    Fields are plain data, because a constraint travels with its plan to the master and into its
    journal. Its `tag` identifies the class there. The tag is the name of the class by default; give
    another one in the class statement: ``class Skew(Constraint, tag="my-plugin.Skew")``.
    """

    by: str
    lasting: ClassVar[bool] = False
    """True if a placement that this constraint forbids stays forbidden as more ranks are placed.
    The builder then skips nodes that already failed."""

    def forbids(self, ranks: Ranks, node: NodeView, placed: Placed) -> bool:
        """Return True if these ranks, which are to share a slot, must not be on `node`, given the
        ranks `placed` so far.

        To check a finished plan, this is called for each slot as if its ranks were placed last.
        """
        raise NotImplementedError

    def told(self) -> str:
        """Return the demand in words that name the strategy."""
        raise NotImplementedError

    def devices(self, ranks: Ranks, node: NodeView, placed: Placed) -> Collection[int]:
        """Return the GPUs of `node` that these ranks must not use."""
        return ()

    @classmethod
    def tagged(cls, tag: object) -> list[type[Constraint]]:
        """Return the imported constraint classes that have this tag."""
        below = [each for derived in cls.__subclasses__() for each in derived.tagged(tag)]
        return [cls, *below] if cls.__struct_config__.tag == tag else below


class Apart(Constraint, frozen=True):
    """Constraint: no rank of the roles `left` shares a domain with a rank of the roles `right`."""

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
    """Constraint: a domain has at most `most` ranks of `role`."""

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
    """Constraint: the ranks of `role` are on nodes that have all of these labels."""

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
    """Return the `Constraint` that `data` encodes if its class is imported; otherwise return
    `data`."""
    found = Constraint.tagged(data.get("type")) if isinstance(data, dict) else ()
    return msgspec.convert(data, found[0]) if found else data


def judged(
    constraint: Constraint, ranks: Ranks, node: NodeView, placed: Placed
) -> tuple[bool, frozenset[int]]:
    """Return whether the constraint forbids these ranks on the node, and the GPUs that they must
    not use; see `Constraint`.

    Raises `PlacementError`, with the constraint and its strategy, if the constraint raises or
    returns something invalid.
    """
    try:
        if (no := constraint.forbids(ranks, node, placed)) not in (True, False):
            raise TypeError(f"forbids() returned {no!r}")
        return bool(no), frozenset(constraint.devices(ranks, node, placed))
    except Exception as error:
        raise faulty(constraint, f"failed: {type(error).__name__}: {error}") from error


def faulty(constraint: Constraint, why: str) -> PlacementError:
    """Return the error for a constraint that violates its contract."""
    cls = type(constraint)
    remedy = f"report it to the author of {constraint.by}"
    return PlacementError(
        f"{constraint.by}'s constraint {cls.__module__}.{cls.__name__} {why}", remedy=remedy
    )


def domain_of(node: NodeView, domain: str) -> str | None:
    """Return the domain of a node (for ``device``: the node); None if the node lacks the label."""
    return (
        node.labels.get(domain.removeprefix("label.")) if domain.startswith("label.") else node.id
    )


def _word(domain: str) -> str:
    return domain.removeprefix("label.") if domain != "device" else "GPU"
