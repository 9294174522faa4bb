"""How strategies make plans: slots are taken where they fit and where no constraint forbids it, and refusals explained.

`PlanBuilder` is what the strategies of this project are written with, and open to every other. It counts, keeps to the
constraints of all strategies before, and gives reasons; it leaves to the strategy which ranks go where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.placement.capacity import Capacity
from rolemesh.placement.conflict import smallest_conflict
from rolemesh.placement.constraints import Apart, Constraint, Spread, Within, describe, domain_of
from rolemesh.placement.plan import Assignment, PlacementPlan, PlacementRequest, Slot, Unplaced

__all__ = ["PlanBuilder", "Wish", "broken"]

Member = tuple[str, int]
"""A rank: its role and number."""


class Wish(NamedTuple):
    """A slot that is wanted: who is to sit on it, what it needs, and the rest that `PlanBuilder.put` takes."""

    members: Sequence[Member]
    needs: Mapping[str, float]
    rule: str
    shares: Mapping[str, float] | None = None
    peers: Mapping[Member, tuple[Member, ...]] | None = None
    turns: bool = False


class Occupancy:
    """Which roles are where: in each domain of each constraint, on each device."""

    def __init__(self, cluster: ClusterView) -> None:
        self._nodes = {node.id: node for node in cluster.nodes}
        self._constraints: list[Constraint] = []
        self._in: dict[tuple[str, str], Counter[str]] = {}
        self._on: dict[tuple[str, int], Counter[str]] = {}
        self._domains: dict[str, dict[str, str | None]] = {}

    def constrain(self, constraint: Constraint) -> None:
        """One more constraint holds from now on."""
        self._constraints.append(constraint)
        if not isinstance(constraint, Within) and constraint.domain not in self._domains:
            domain = constraint.domain
            self._domains[domain] = {name: domain_of(node, domain) for name, node in self._nodes.items()}
            if domain not in ("node", "device"):
                for node, where in self._domains[domain].items():
                    known = self._in.get(("node", node))
                    if known and where is not None:
                        self._in.setdefault((domain, where), Counter()).update(known)

    def add(self, role: str, slot: Slot, count: int = 1) -> None:
        """A rank of `role` is on `slot`."""
        self._in.setdefault(("node", slot.node), Counter())[role] += count
        for domain, where in self._domains.items():
            here = where.get(slot.node)
            if domain not in ("node", "device") and here is not None:
                self._in.setdefault((domain, here), Counter())[role] += count
        for index, _ in slot.gpus:
            self._on.setdefault((slot.node, index), Counter())[role] += count

    def remove(self, role: str, slot: Slot) -> None:
        """A rank of `role` is not on `slot` after all."""
        self.add(role, slot, -1)

    def forbidden(self, roles: Mapping[str, int], node: str) -> list[Constraint]:
        """The constraints that keep so many ranks of `roles` from being together on `node`."""
        return [constraint for constraint in self._constraints if self._forbids(constraint, roles, node)]

    def _forbids(self, constraint: Constraint, roles: Mapping[str, int], node: str) -> bool:
        match constraint:
            case Within(_, role, labels):
                has = self._nodes[node].labels
                return role in roles and any(has.get(name) != value for name, value in labels)
            case Spread(_, role, most, domain):
                return role in roles and self._count(domain, node, role) + roles[role] > most
            case Apart(_, left, right, domain):
                ours, theirs = roles.keys() & left, roles.keys() & right
                if ours and theirs:
                    return True
                if not (ours or theirs) or domain == "device":
                    return False
                where = self._domains[domain][node]
                here = self._in.get((domain, where)) if where is not None else None
                return where is None or any(here[role] for role in (right if ours else left)) if here else where is None
        raise TypeError(constraint)

    def _count(self, domain: str, node: str, role: str) -> int:
        where = self._domains[domain][node]
        if where is None:
            return 1 << 30
        return self._in.get(("node" if domain == "device" else domain, where), Counter())[role]

    def foreign_devices(self, roles: Iterable[str], node: str) -> frozenset[int]:
        """The GPUs of `node` that a constraint keeps `roles` from."""
        found: set[int] = set()
        mine = set(roles)
        for constraint in self._constraints:
            if isinstance(constraint, Apart) and constraint.domain == "device":
                enemies = set()
                if mine & set(constraint.left):
                    enemies |= set(constraint.right)
                if mine & set(constraint.right):
                    enemies |= set(constraint.left)
                here = [(index, there) for (where, index), there in self._on.items() if where == node]
                found |= {index for index, there in here if any(there[role] for role in enemies)}
        return frozenset(found)


class PlanBuilder:
    """A plan in the making. `plan` is what earlier strategies decided, which stays as it is."""

    def __init__(self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> None:
        self.request, self.cluster = request, cluster
        self.nodes = tuple(node.id for node in cluster.nodes)
        self.known = frozenset(self.nodes)
        self._capacity = Capacity(cluster, plan.slots)
        self._occupancy = Occupancy(cluster)
        self._slots, self._assignments = list(plan.slots), list(plan.assignments)
        self._unplaced = list(plan.unplaced)
        self._constraints: list[Constraint] = []
        self._refused: dict[object, _Refusal] = {}
        self._full: dict[object, int] = {}
        self._node_of: dict[Member, str] = {}
        self._decided = {(unplaced.role, unplaced.rank) for unplaced in plan.unplaced}
        for constraint in plan.constraints:
            self.constrain(constraint)
        for assignment in plan.assignments:
            self._seat(assignment)

    def _seat(self, assignment: Assignment) -> None:
        slot = self._slots[assignment.slot]
        self._node_of[assignment.role, assignment.rank] = slot.node
        self._decided.add((assignment.role, assignment.rank))
        if slot.node in self.known:
            self._occupancy.add(assignment.role, slot)

    # ----------------------------------------------------------------------------------------------- what is known

    def node_of(self, role: str, rank: int) -> str | None:
        """Where a rank has been placed, by this strategy or one before; None if it has no place."""
        return self._node_of.get((role, rank))

    def waiting(self, role: str) -> list[int]:
        """The ranks of a role that nobody has decided about."""
        world_size = self.request.role(role).world_size
        return [rank for rank in range(world_size) if (role, rank) not in self._decided]

    def free(self, node: str) -> dict[str, float]:
        """What is left on a node, by name."""
        return self._capacity.free(node)

    def room(self, role: str, needs: Mapping[str, float], node: str, most: int) -> int:
        """How many ranks of `role` with `needs` each would fit on `node`, counted up to `most`."""
        fits = self._capacity.room(node, needs, most)
        while fits and self._occupancy.forbidden({role: fits}, node):
            fits -= 1
        return fits

    # --------------------------------------------------------------------------------------------------- decisions

    def constrain(self, constraint: Constraint) -> None:
        """Demand something of what is decided from now on, here and by the strategies that follow."""
        if constraint in self._constraints:
            return
        self._occupancy.constrain(constraint)
        self._constraints.append(constraint)

    def put(
        self,
        members: Sequence[Member],
        needs: Mapping[str, float],
        rule: str,
        nodes: Iterable[str] | None = None,
        *,
        shares: Mapping[str, float] | None = None,
        peers: Mapping[Member, tuple[Member, ...]] | None = None,
        turns: bool = False,
    ) -> Slot | None:
        """Put these ranks on one new slot with `needs`, on the first of `nodes` (None: any) that can take them.

        None if no node can; nothing has changed then. `shares` by role, `peers` by rank: see `Assignment`; `turns`: see
        `Slot`.
        """
        counts = Counter(role for role, _ in members)
        key = (tuple(counts.items()), tuple(needs.items()))
        for node in self._candidates(key) if nodes is None else nodes:
            slot = self._take(counts, needs, node, turns)
            if slot is not None:
                for member in members:
                    share = (shares or {}).get(member[0], 1.0)
                    known = (peers or {}).get(member, ())
                    self._assignments.append(Assignment(*member, slot.id, share, rule, known))
                    self._seat(self._assignments[-1])
                return slot
        return None

    def put_together(self, wishes: Sequence[Wish], nodes: Iterable[str] | None = None) -> str | None:
        """Put several slots on one node, the first of `nodes` (None: any) that takes all of them; its name, or None."""
        counts = Counter(role for wish in wishes for role, _ in wish.members)
        key = tuple((tuple(Counter(role for role, _ in w.members).items()), tuple(w.needs.items())) for w in wishes)
        for node in self._candidates(key) if nodes is None else nodes:
            foreign = self._occupancy.foreign_devices(counts, node)
            if self._occupancy.forbidden(counts, node):
                continue
            if self._capacity.fits(node, [wish.needs for wish in wishes], foreign):
                for wish in wishes:
                    self._put(wish, (node,))
                return node
        return None

    def put_across(self, wishes: Sequence[Wish], nodes: Sequence[str]) -> bool:
        """Put several slots on `nodes`, each on the first with room for it; all of them, or none."""
        for done, wish in enumerate(wishes):
            if not self._put(wish, nodes):
                for before in reversed(wishes[:done]):
                    self._undo(len(before.members))
                return False
        return True

    def _put(self, wish: Wish, nodes: Iterable[str]) -> Slot | None:
        members, needs, rule, shares, peers, turns = wish
        return self.put(members, needs, rule, nodes, shares=shares, peers=peers, turns=turns)

    def refuse(self, members: Sequence[Member], needs: Mapping[str, float], rule: str = "", why: str = "") -> None:
        """These ranks, which were to share a slot with `needs`, get no place: `why`, or what is found to be in the way.

        `rule` is the one that could not be followed, as for `put`. No later strategy will place them.
        """
        self._decided.update(members)
        if why:
            self._unplaced += [Unplaced(*member, why) for member in members]
            return
        counts = Counter(role for role, _ in members)
        key = (tuple(counts.items()), tuple(needs.items()))
        if key not in self._refused:
            self._refused[key] = _Refusal(dict(needs), self._conflict(counts, needs), rule)
        self._refused[key].members.extend(members)
        self._refused[key].slots += 1

    def refuse_together(self, wishes: Sequence[Wish], rule: str) -> None:
        """These slots, which were to be on one node, get no place: `rule` says what belongs together."""
        needs: Counter[str] = Counter()
        for wish in wishes:
            needs.update(wish.needs)
        self.refuse([member for wish in wishes for member in wish.members], needs, f"{rule} belongs on one node")

    def build(self) -> PlacementPlan:
        """The new plan. How much the cluster misses is told last, when it is known what is left."""
        unplaced = list(self._unplaced)
        for refusal in self._refused.values():
            reason = self._reason(refusal)
            unplaced += [Unplaced(*member, reason) for member in refusal.members]
        return PlacementPlan(tuple(self._slots), tuple(self._assignments), tuple(unplaced), tuple(self._constraints))

    def _undo(self, members: int) -> None:
        """Take the last slot back, on which there are so many."""
        slot = self._slots.pop()
        self._capacity.give_back(slot)
        for _ in range(members):
            assignment = self._assignments.pop()
            self._occupancy.remove(assignment.role, slot)
            del self._node_of[assignment.role, assignment.rank]
            self._decided.discard((assignment.role, assignment.rank))

    def _take(self, counts: Counter[str], needs: Mapping[str, float], node: str, turns: bool) -> Slot | None:
        if self._occupancy.forbidden(counts, node):
            return None
        slot = self._capacity.take(len(self._slots), node, needs, self._occupancy.foreign_devices(counts, node))
        if slot is None:
            return None
        slot = msgspec.structs.replace(slot, turns=turns)
        self._slots.append(slot)
        return slot

    def _candidates(self, key: object) -> Iterable[str]:
        """All nodes but those at the beginning that were full for `key` before: what does not fit now never will."""
        for index in range(self._full.get(key, 0), len(self.nodes)):
            self._full[key] = index
            yield self.nodes[index]
        self._full[key] = len(self.nodes)

    # ----------------------------------------------------------------------------------------------------- reasons

    def _conflict(self, counts: Mapping[str, int], needs: Mapping[str, float]) -> dict[str, str] | str:
        """What keeps a slot with `needs` for so many ranks of each role from every node: the smallest set of demands.

        By demand what it says; resources by their names.
        """
        if not self.nodes:
            return "the cluster has no nodes"
        violated: list[frozenset[str]] = []
        for node in self.nodes:
            foreign = self._occupancy.foreign_devices(counts, node)
            forbidden = map(describe, self._occupancy.forbidden(counts, node))
            violated.append(frozenset({*self._capacity.short(node, needs, foreign), *forbidden}))
        if not all(violated):
            return "every node that has enough in sum has it in pieces that do not fit"
        return {
            demand: self._shortage(demand, needs[demand]) if demand in needs else demand
            for demand in smallest_conflict(violated)
        }

    def _shortage(self, name: str, need: float) -> str:
        free = {node: self._capacity.free(node).get(name, 0.0) for node in self.nodes}
        best = max(self.nodes, key=lambda node: free[node])
        return f"{name} {need:g}, the most that is free on a node is {free[best]:g} ({best})" + (
            "" if free[best] < need else ", but not whole, or not where the rest is free"
        )

    def _reason(self, refusal: _Refusal) -> str:
        if isinstance(refusal.conflict, str):
            return f"{refusal.rule}, but {refusal.conflict}" if refusal.rule else refusal.conflict
        told = [f"needs {text}" for name, text in refusal.conflict.items() if name in refusal.needs]
        told += [text for name, text in refusal.conflict.items() if name not in refusal.needs]
        reason = told[0] if len(told) == 1 else f"no node meets all of this: {'; '.join(told)}"
        if refusal.rule:
            reason = f"{refusal.rule}, but {reason}"
        for name in refusal.conflict.keys() & refusal.needs.keys():
            free = sum(self._capacity.free(node).get(name, 0.0) for node in self.nodes)
            wanted = sum(other.needs.get(name, 0.0) * other.slots for other in self._refused.values())
            missing = round(wanted - free, 6)
            if missing > 0:
                reason += f"; the cluster misses {missing:g} {name}"
            elif len(told) == 1:
                reason += f"; {free:g} are free in all, scattered"
        return reason


class _Refusal:
    """Ranks without a place that need the same, and what was in the way of the first of them."""

    def __init__(self, needs: dict[str, float], conflict: dict[str, str] | str, rule: str) -> None:
        self.needs, self.conflict, self.rule = needs, conflict, rule
        self.members: list[Member] = []
        self.slots = 0


def broken(plan: PlacementPlan, cluster: ClusterView) -> tuple[Constraint, Assignment] | None:
    """The first assignment that a constraint of `plan` forbids, with that constraint; None if all of them hold."""
    occupancy = Occupancy(cluster)
    for constraint in plan.constraints:
        occupancy.constrain(constraint)
    known = {node.id for node in cluster.nodes}
    together: dict[int, Counter[str]] = {}
    for assignment in plan.assignments:
        slot = plan.slots[assignment.slot]
        if slot.node not in known:
            continue
        mates = together.setdefault(slot.id, Counter())
        found = occupancy.forbidden({assignment.role: 1}, slot.node)
        found += [c for c in occupancy.forbidden({**mates, assignment.role: 1}, slot.node) if isinstance(c, Apart)]
        foreign = occupancy.foreign_devices([assignment.role], slot.node)
        if any(index in foreign for index, _ in slot.gpus):
            found += [c for c in plan.constraints if isinstance(c, Apart) and c.domain == "device"]
        if found:
            return found[0], assignment
        mates[assignment.role] += 1
        occupancy.add(assignment.role, slot)
    return None
