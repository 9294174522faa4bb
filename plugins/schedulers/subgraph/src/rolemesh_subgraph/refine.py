"""Move and swap ranks between nodes until no change reduces the bytes that cross nodes. Pure.

Fiduccia and Mattheyses 1982, "A linear-time heuristic for improving network partitions": in a pass each rank moves
once, the best change first, even if it costs; the best state of the pass is kept. Here a rank may also swap with
another, because nodes are often full. Before the passes, each rank takes the changes that help at once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rolemesh import PlacementRequest
from rolemesh_subgraph.partition import UNKNOWN, Rank
from rolemesh_subgraph.traffic import pairs

__all__ = ["Occupancy", "Unit", "refined"]

EFFORT = 12_000
"""Maximum number of moves and swaps that are examined in all, which takes a tenth of a second. Then the best result so
far counts."""
STARTS = 8
"""Maximum number of further starting points, as far as the effort allows: all of them for a dozen ranks."""
LEAST = 1e-3
"""Minimum gain in bytes of a change, because sums are rounded."""


Unit = tuple[Rank, ...]
"""Ranks that stay together on one node: a single rank, or the ranks of a collective role."""


class _Change(NamedTuple):
    """`unit` moves from `here` to `node`, and `other`, if any, moves back. `gain`: bytes that no longer cross."""

    gain: float
    unit: Unit
    here: str
    node: str
    other: Unit | None


class Occupancy:
    """The node of each rank (`where`), and the free resources by node (`free`). Only `mobile` units move."""

    def __init__(
        self,
        request: PlacementRequest,
        where: Mapping[Rank, str],
        mobile: Iterable[Unit],
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
        for transfer in request.transfers:
            size = UNKNOWN if transfer.bytes is None else transfer.bytes
            m, n = sizes[transfer.src], sizes[transfer.dst]
            if transfer.pattern == "all":
                self._to_all[transfer.src][transfer.dst] += size / (m * n)  # type: ignore[assignment]
                self._to_all[transfer.dst][transfer.src] += size / (m * n)  # type: ignore[assignment]
                continue
            for producer, consumer, share in pairs(m, n):
                one, other = (transfer.src, producer), (transfer.dst, consumer)
                self._near.setdefault(one, Counter())[other] += size * share  # type: ignore[assignment]
                self._near.setdefault(other, Counter())[one] += size * share  # type: ignore[assignment]
        self._alike = self._to_all.keys() - {role for role, _ in self._near}

    def changes(self, unit: Unit, locked: set[Unit]) -> Iterator[_Change]:
        """Yield the possible changes of `unit`: to any node with room, or a swap with a unit there that is not
        `locked`."""
        here, alike = self.where[unit[0]], len(unit) == 1 and unit[0][0] in self._alike
        kept = self._exchanged(unit, here)
        gains = {node: self._exchanged(unit, node) - kept for node in self._free if node != here}
        for node, gain in gains.items():
            if self._fits(unit, node):
                yield _Change(gain, unit, here, node, None)
        for other in self.mobile:
            node = self.where[other[0]]
            if node == here or node not in gains or other in locked or (alike and other[0][0] == unit[0][0]):
                continue
            if self._fits(unit, node, other):
                gain = gains[node] + self._exchanged(other, here) - self._exchanged(other, node)
                yield _Change(gain - 2 * self._between(unit, other), unit, here, node, other)

    def inside(self) -> float:
        """Return the bytes per step between ranks on the same node."""
        near = sum(
            weight
            for rank, peers in self._near.items()
            for peer, weight in peers.items()
            if (node := self.where.get(rank)) is not None and node == self.where.get(peer)
        )
        to_all = sum(
            each * count * self._on[other][node]
            for role, others in self._to_all.items()
            for other, each in others.items()
            for node, count in self._on[role].items()
        )
        return (near + to_all) / 2

    def scatter(self, rng: random.Random) -> None:
        """Put all units on random nodes, the large ones first. Nothing changes if one finds no room."""
        before = {unit: self.where[unit[0]] for unit in self.mobile}
        for unit in self.mobile:
            self._put(unit, before[unit], 1)
        order = sorted(self.mobile, key=lambda unit: (-max(self._needs_of(unit).values(), default=0.0), rng.random()))
        after: dict[Unit, str] = {}
        for unit in order:
            nodes = [node for node in self._free if _room(self._needs_of(unit), self._free[node], {})]
            if not nodes:
                break
            after[unit] = rng.choice(nodes)
            self._put(unit, after[unit], -1)
        if len(after) < len(order):
            for unit, node in after.items():
                self._put(unit, node, 1)
            after = before
            for unit, node in after.items():
                self._put(unit, node, -1)
        for unit, node in after.items():
            self._on[unit[0][0]][before[unit]] -= len(unit)
            self._on[unit[0][0]][node] += len(unit)
            self.where.update(dict.fromkeys(unit, node))

    def _put(self, unit: Unit, node: str, sign: int) -> None:
        """Add the unit's needs to the free resources of `node` (1), or subtract them (-1)."""
        for name, amount in self._needs_of(unit).items():
            self._free[node][name] = self._free[node].get(name, 0.0) + sign * amount

    def apply(self, change: _Change) -> None:
        """Apply the change."""
        self._move(change.unit, change.node)
        if change.other:
            self._move(change.other, change.here)

    def take_back(self, change: _Change) -> None:
        """Undo the change."""
        self._move(change.unit, change.here)
        if change.other:
            self._move(change.other, change.node)

    def _exchanged(self, unit: Unit, node: str) -> float:
        """Return the bytes per step between `unit` and the other ranks on `node`."""
        found = sum(
            weight
            for rank in unit
            for other, weight in self._near.get(rank, {}).items()
            if self.where.get(other) == node
        )
        to_all = self._to_all[unit[0][0]].items()
        return found + len(unit) * sum(each * self._on[role][node] for role, each in to_all)

    def _between(self, one: Unit, other: Unit) -> float:
        pairs_ = sum(self._near.get(rank, Counter[Rank]())[peer] for rank in one for peer in other)
        return pairs_ + len(one) * len(other) * self._to_all[one[0][0]][other[0][0]]

    def _fits(self, unit: Unit, node: str, other: Unit | None = None) -> bool:
        """Return whether `unit` fits on `node` after `other` left it, and `other` then fits in the place of `unit`."""
        needs = self._needs_of(unit)
        if other is None:
            return _room(needs, self._free[node], {})
        theirs = self._needs_of(other)
        return _room(needs, self._free[node], theirs) and _room(theirs, self._free[self.where[unit[0]]], needs)

    def _needs_of(self, unit: Unit) -> Mapping[str, float]:
        needs = self._needs[unit[0][0]]
        return needs if len(unit) == 1 else {name: amount * len(unit) for name, amount in needs.items()}

    def _move(self, unit: Unit, node: str) -> None:
        before, role = self.where[unit[0]], unit[0][0]
        self._put(unit, before, 1)
        self._put(unit, node, -1)
        self._on[role][before] -= len(unit)
        self._on[role][node] += len(unit)
        self.where.update(dict.fromkeys(unit, node))


def _room(needs: Mapping[str, float], free: Mapping[str, float], given_back: Mapping[str, float]) -> bool:
    return all(
        amount <= free.get(name, 0.0) + given_back.get(name, 0.0) + 1e-9 for name, amount in needs.items() if amount
    )


def refined(layout: Occupancy, effort: int = EFFORT) -> dict[Rank, str]:
    """Return the nodes of ranks after changes, until none helps or `effort` is spent. The result is deterministic.

    If it is cheap, this repeats from other starting points and returns the best result.
    """
    left = _settled(layout, effort)
    best, found = layout.inside(), dict(layout.where)
    each = effort - left
    for start in range(STARTS):
        if left < each:
            break
        layout.scatter(random.Random(start))
        left = _settled(layout, left)
        if (inside := layout.inside()) > best + LEAST:
            best, found = inside, dict(layout.where)
    return found


def _settled(layout: Occupancy, effort: int) -> int:
    """Change until nothing helps any more. Return the remaining effort."""
    effort = _improve(layout, effort)
    helped = True
    while helped and effort > 0:
        helped, effort = _pass(layout, effort)
    return effort


def _improve(layout: Occupancy, effort: int) -> int:
    """Let each unit in turn take the change that helps most, until none does."""
    helped = True
    while helped and effort > 0:
        helped = False
        for unit in layout.mobile:
            changes = list(layout.changes(unit, set()))
            effort -= len(changes)
            change = max(changes, key=_gain, default=None)
            if change is not None and change.gain > LEAST:
                layout.apply(change)
                helped = True
            if effort <= 0:
                break
    return effort


def _pass(layout: Occupancy, effort: int) -> tuple[bool, int]:
    """Change every unit once, the best change first. Keep the best state, and return whether it is better than
    before."""
    locked: set[Unit] = set()
    done: list[_Change] = []
    gained = best = 0.0
    kept = 0
    while effort > 0:
        changes = [
            change for unit in layout.mobile if unit not in locked for change in layout.changes(unit, locked)
        ]  # fmt: skip
        effort -= len(changes)
        change = max(changes, key=_gain, default=None)
        if change is None:
            break
        layout.apply(change)
        done.append(change)
        locked |= {change.unit, change.other} if change.other else {change.unit}
        gained += change.gain
        if gained > best + LEAST:
            best, kept = gained, len(done)
    for change in reversed(done[kept:]):
        layout.take_back(change)
    return kept > 0, effort


def _gain(change: _Change) -> float:
    return change.gain
