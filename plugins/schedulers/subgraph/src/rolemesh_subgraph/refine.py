"""Ranks on nodes, moved and swapped as long as fewer bytes cross. Pure.

Fiduccia and Mattheyses 1982, "A linear-time heuristic for improving network partitions": in a pass each rank moves
once (here it may also swap with another, since nodes are often full), the best change first even if it costs, and of
all that the pass went through the best is kept. Before that, ranks take what helps at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rolemesh import PlacementRequest
from rolemesh_subgraph.partition import UNKNOWN, Rank
from rolemesh_subgraph.traffic import pairs

__all__ = ["Layout", "refined"]

EFFORT = 150_000
"""So many moves and swaps are looked at in all, some tenths of a second; what is reached by then counts."""
EPSILON = 1e-9


class _Change(NamedTuple):
    """`rank` goes from `here` to `node`, and `other`, if any, the other way. `gain`: bytes that no longer cross."""

    gain: float
    rank: Rank
    here: str
    node: str
    other: Rank | None


class Layout:
    """Where ranks are: `where` by rank, `free` by node. Only `mobile` ranks change their place."""

    def __init__(
        self,
        request: PlacementRequest,
        where: Mapping[Rank, str],
        mobile: Iterable[Rank],
        free: Mapping[str, Mapping[str, float]],
    ) -> None:
        self.where = dict(where)
        self.mobile = list(mobile)
        self._needs = {role.role: role.needs for role in request.roles}
        self._free = {node: dict(room) for node, room in free.items()}
        self._near: dict[Rank, Counter[Rank]] = {}
        self._to_all: dict[str, Counter[str]] = {role.role: Counter() for role in request.roles}
        self._on: dict[str, Counter[str]] = {role.role: Counter() for role in request.roles}
        for (role, _), node in self.where.items():
            self._on[role][node] += 1
        sizes = {role.role: role.world_size for role in request.roles}
        for flow in request.flows:
            size = UNKNOWN if flow.bytes is None else flow.bytes
            m, n = sizes[flow.src], sizes[flow.dst]
            if flow.pattern == "all":
                self._to_all[flow.src][flow.dst] += size / (m * n)  # type: ignore[assignment]
                self._to_all[flow.dst][flow.src] += size / (m * n)  # type: ignore[assignment]
                continue
            for producer, consumer, share in pairs(m, n):
                one, other = (flow.src, producer), (flow.dst, consumer)
                self._near.setdefault(one, Counter())[other] += size * share  # type: ignore[assignment]
                self._near.setdefault(other, Counter())[one] += size * share  # type: ignore[assignment]
        self._alike = self._to_all.keys() - {role for role, _ in self._near}

    def changes(self, rank: Rank, locked: set[Rank]) -> Iterator[_Change]:
        """What `rank` could do: go to any node with room, or swap with a rank there that is not `locked`."""
        here = self.where[rank]
        kept = self._exchanged(rank, here)
        gains = {node: self._exchanged(rank, node) - kept for node in self._free if node != here}
        for node, gain in gains.items():
            if self._fits(rank, node):
                yield _Change(gain, rank, here, node, None)
        for other in self.mobile:
            node = self.where[other]
            if node == here or node not in gains or other in locked or (other[0] == rank[0] and rank[0] in self._alike):
                continue
            if self._fits(rank, node, other):
                gain = gains[node] + self._exchanged(other, here) - self._exchanged(other, node)
                yield _Change(gain - 2 * self._between(rank, other), rank, here, node, other)

    def apply(self, change: _Change) -> None:
        """Do it."""
        self._move(change.rank, change.node)
        if change.other:
            self._move(change.other, change.here)

    def take_back(self, change: _Change) -> None:
        """Undo it."""
        self._move(change.rank, change.here)
        if change.other:
            self._move(change.other, change.node)

    def _exchanged(self, rank: Rank, node: str) -> float:
        """The bytes per step between `rank` and the other ranks that are on `node`."""
        found = sum(weight for other, weight in self._near.get(rank, {}).items() if self.where.get(other) == node)
        return found + sum(each * self._on[role][node] for role, each in self._to_all[rank[0]].items())

    def _between(self, one: Rank, other: Rank) -> float:
        return self._near.get(one, Counter[Rank]())[other] + self._to_all[one[0]][other[0]]

    def _fits(self, rank: Rank, node: str, other: Rank | None = None) -> bool:
        """Whether `rank` has room on `node`, once `other` has left it, and `other` then where `rank` is."""
        needs = self._needs[rank[0]]
        if other is None:
            return _room(needs, self._free[node], {})
        theirs = self._needs[other[0]]
        return _room(needs, self._free[node], theirs) and _room(theirs, self._free[self.where[rank]], needs)

    def _move(self, rank: Rank, node: str) -> None:
        before = self.where[rank]
        for name, amount in self._needs[rank[0]].items():
            self._free[before][name] = self._free[before].get(name, 0.0) + amount
            self._free[node][name] = self._free[node].get(name, 0.0) - amount
        self._on[rank[0]][before] -= 1
        self._on[rank[0]][node] += 1
        self.where[rank] = node


def _room(needs: Mapping[str, float], free: Mapping[str, float], given_back: Mapping[str, float]) -> bool:
    return all(
        amount <= free.get(name, 0.0) + given_back.get(name, 0.0) + EPSILON for name, amount in needs.items() if amount
    )


def refined(layout: Layout, effort: int = EFFORT) -> dict[Rank, str]:
    """Where ranks are after changes, until none helps or `effort` is spent. The same each time."""
    left = _improve(layout, effort)
    while left > 0:
        gained, left = _pass(layout, left)
        if not gained:
            break
    return layout.where


def _improve(layout: Layout, effort: int) -> int:
    """Each rank in turn takes the change that helps most, as long as one does; what is left of `effort`."""
    helped = True
    while helped and effort > 0:
        helped = False
        for rank in layout.mobile:
            found: _Change | None = None
            for change in layout.changes(rank, set()):
                effort -= 1
                if change.gain > EPSILON and (found is None or change.gain > found.gain):
                    found = change
            if found is not None:
                layout.apply(found)
                helped = True
            if effort <= 0:
                break
    return effort


def _pass(layout: Layout, effort: int) -> tuple[bool, int]:
    """Whether a pass has gained something, and what is left of `effort`."""
    locked: set[Rank] = set()
    done: list[_Change] = []
    gained = best = 0.0
    kept = 0
    while effort > 0:
        found: _Change | None = None
        for rank in layout.mobile:
            if rank in locked:
                continue
            for change in layout.changes(rank, locked):
                effort -= 1
                if found is None or change.gain > found.gain + EPSILON:
                    found = change
        if found is None:
            break
        layout.apply(found)
        done.append(found)
        locked |= {found.rank, found.other} if found.other else {found.rank}
        gained += found.gain
        if gained > best + EPSILON:
            best, kept = gained, len(done)
    for change in reversed(done[kept:]):
        layout.take_back(change)
    return kept > 0, effort
