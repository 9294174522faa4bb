"""`PlanBuilder`: helps strategies to make plans. It finds slots that fit, obeys constraints, and
explains refusals.

The strategies of this project use it, and any other strategy may. The strategy decides where each
rank goes. The builder counts resources, obeys the constraints of all earlier strategies, and gives
the reasons for refusals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple, TypeVar

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import RankRef
from rolemesh.placement.capacity import Capacity
from rolemesh.placement.constraints import Constraint, Placed, Ranks, faulty, judged, revived
from rolemesh.placement.plan import Assignment, PlacementPlan, PlacementRequest, Slot, Unplaced


class Wish(NamedTuple):
    """A slot to place: the ranks on it, their needs, and the other arguments of
    `PlanBuilder.put`."""

    members: Sequence[RankRef]
    needs: Mapping[str, float]
    rule: str
    shares: Mapping[str, float] | None = None
    peers: Mapping[RankRef, tuple[RankRef, ...]] | None = None
    turns: bool = False


class PlanBuilder:
    """A plan under construction. `plan` has the decisions of earlier strategies, which do not
    change."""

    def __init__(
        self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan
    ) -> None:
        self.request = request
        self.cluster = cluster
        self.nodes = tuple(node.id for node in cluster.nodes)
        self.known = frozenset(self.nodes)
        self._capacity = Capacity(cluster, plan.slots)
        self._placed = Placed(cluster, {role.role: role.world_size for role in request.roles})
        self._placed.left.subtract(unplaced.role for unplaced in plan.unplaced)
        self._constraints = list[Constraint]()
        for constraint in plan.constraints:
            self.constrain(constraint)
        self._slots = list(plan.slots)
        self._assignments = list(plan.assignments)
        self._unplaced = list(plan.unplaced)
        self._refused: dict[object, _Refusal] = {}
        self._full: dict[object, int] = {}
        self._node_of: dict[RankRef, str] = {}
        self._decided = {unplaced.ref for unplaced in plan.unplaced}
        for assignment in plan.assignments:
            self._seat(assignment)

    def _seat(self, assignment: Assignment) -> None:
        slot = self._slots[assignment.slot]
        self._node_of[assignment.ref] = slot.node
        self._decided.add(assignment.ref)
        if slot.node in self.known:
            self._placed.add(assignment.role, slot)

    # ----------------------------------------------------------------------------------------------
    # what is known

    def node_of(self, role: str, rank: int) -> str | None:
        """Return the node of a placed rank, whichever strategy placed it; None if it has none."""
        return self._node_of.get(RankRef(role, rank))

    def waiting(self, role: str) -> list[int]:
        """Return the ranks of a role that no strategy has decided on yet."""
        world_size = self.request.role(role).world_size
        return [rank for rank in range(world_size) if RankRef(role, rank) not in self._decided]

    def free(self, node: str) -> dict[str, float]:
        """Return the free resources of a node, by name."""
        return self._capacity.free(node)

    def room(self, role: str, needs: Mapping[str, float], node: str, most: int) -> int:
        """Return how many ranks of `role` with these `needs` each fit on `node`; at most `most`."""
        fits = self._capacity.room(node, needs, most)
        while fits and self._judged({role: range(fits)}, node)[0]:
            fits -= 1
        return fits

    # ----------------------------------------------------------------------------------------------
    # decisions

    def constrain(self, constraint: Constraint) -> None:
        """Add a constraint on all further decisions, of this strategy and of those that follow."""
        if not isinstance(constraint := revived(constraint), Constraint):
            raise TypeError(f"{constraint!r} is no constraint")
        if constraint not in self._constraints:
            self._constraints.append(constraint)

    def _judged(self, ranks: Ranks, node: str) -> tuple[list[Constraint], set[int]]:
        """Return the constraints that forbid these ranks on `node`, and the GPUs there that the
        ranks must not use."""
        at = self._placed.nodes[node]
        found = [
            (constraint, *judged(constraint, ranks, at, self._placed))
            for constraint in self._constraints
        ]
        return [constraint for constraint, no, _ in found if no], {
            index for *_, gpus in found for index in gpus
        }

    def put(
        self,
        members: Sequence[RankRef],
        needs: Mapping[str, float],
        rule: str,
        nodes: Iterable[str] | None = None,
        *,
        shares: Mapping[str, float] | None = None,
        peers: Mapping[RankRef, tuple[RankRef, ...]] | None = None,
        turns: bool = False,
    ) -> Slot | None:
        """Put these ranks on one new slot with `needs`, on the first of `nodes` (None: any) that
        can hold them.

        Returns None, and changes nothing, if no node can. `shares` by role, `peers` by rank: see
        `Assignment`; `turns`: see `Slot`.
        """
        return self._put(Wish(members, needs, rule, shares, peers, turns), nodes)

    def put_together(
        self, wishes: Sequence[Wish], nodes: Iterable[str] | None = None
    ) -> str | None:
        """Put several slots on the same node, the first of `nodes` (None: any) that can hold all of
        them. Return its name, or None."""
        candidates = self._candidates(tuple(map(_kind, wishes))) if nodes is None else nodes
        return next((node for node in candidates if self.put_across(wishes, (node,))), None)

    def put_across(self, wishes: Sequence[Wish], nodes: Sequence[str]) -> bool:
        """Put several slots on `nodes`, each on the first one with room for it. Return False, and
        place none, if one does not fit."""
        for done, wish in enumerate(wishes):
            if not self._put(wish, nodes):
                for before in reversed(wishes[:done]):
                    self._undo(len(before.members))
                return False
        return True

    def _put(self, wish: Wish, nodes: Iterable[str] | None) -> Slot | None:
        ranks = _by_role(wish.members)
        for node in self._candidates(_kind(wish)) if nodes is None else nodes:
            forbidden, foreign = self._judged(ranks, node)
            if forbidden:
                continue
            if (slot := self._capacity.take(len(self._slots), node, wish.needs, foreign)) is None:
                continue
            self._slots.append(slot := msgspec.structs.replace(slot, turns=wish.turns))
            for member in wish.members:
                share = (wish.shares or {}).get(member[0], 1.0)
                peers = (wish.peers or {}).get(member, ())
                self._assignments.append(Assignment(*member, slot.id, share, wish.rule, peers))
                self._seat(self._assignments[-1])
            return slot
        return None

    def refuse(
        self,
        members: Sequence[RankRef],
        needs: Mapping[str, float],
        rule: str = "",
        why: str = "",
        remedy: str = "",
    ) -> None:
        """Give these ranks, which were to share a slot with `needs`, no place. `why` is the reason;
        by default the builder finds it.

        `rule` is the rule that could not be followed, as for `put`. `remedy` is the advice for the
        user; "" advises to lower world sizes or resources, or to add nodes. Later strategies do not
        place these ranks.
        """
        self._decided.update(members)
        self._placed.left.subtract(role for role, _ in members)
        if why:
            self._unplaced += [Unplaced(*member, why, remedy) for member in members]
            return
        if (key := (_kind(Wish(members, needs, rule)), remedy)) not in self._refused:
            conflict = self._conflict(_by_role(members), needs)
            self._refused[key] = _Refusal(needs, conflict, rule, remedy)
        self._refused[key].members.extend(members)
        self._refused[key].slots += 1

    def build(self) -> PlacementPlan:
        """Return the new plan. The missing resources are computed here, when all other ranks are
        placed."""
        unplaced = list(self._unplaced)
        for refusal in self._refused.values():
            reason = self._reason(refusal)
            unplaced += [Unplaced(*member, reason, refusal.remedy) for member in refusal.members]
        return PlacementPlan(
            tuple(self._slots), tuple(self._assignments), tuple(unplaced), tuple(self._constraints)
        )

    def _undo(self, members: int) -> None:
        """Remove the last slot, which holds this number of ranks."""
        slot = self._slots.pop()
        self._capacity.give_back(slot)
        for _ in range(members):
            assignment = self._assignments.pop()
            self._placed.add(assignment.role, slot, -1)
            del self._node_of[assignment.ref]
            self._decided.discard(assignment.ref)

    def _candidates(self, key: object) -> Iterable[str]:
        """Return all nodes, without the first ones that were full for `key` if they can never have
        room for it again."""
        if not all(constraint.lasting for constraint in self._constraints):
            yield from self.nodes
            return
        for index in range(self._full.get(key, 0), len(self.nodes)):
            self._full[key] = index
            yield self.nodes[index]
        self._full[key] = len(self.nodes)

    # ----------------------------------------------------------------------------------------------
    # reasons

    def _conflict(self, ranks: Ranks, needs: Mapping[str, float]) -> dict[str, str]:
        """Return the smallest set of demands that keeps a slot with `needs` for these ranks from
        every node.

        The result maps each demand to its description; resources are named.
        """
        if not self.nodes:
            return {"nodes": "the cluster has no nodes"}
        violated: list[frozenset[str]] = []
        for node in self.nodes:
            forbidden, foreign = self._judged(ranks, node)
            told = (by.told() for by in forbidden)
            violated.append(frozenset({*self._capacity.short(node, needs, foreign), *told}))
        fit = [node for node, found in zip(self.nodes, violated, strict=True) if not found]
        if unused := [node for node in fit if self._capacity.room(node, needs, 1)]:
            return {"unused": f"the strategy leaves out {unused[0]}, which has room"}
        if fit:
            return {"pieces": "every node that has enough in sum has it in pieces that do not fit"}
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
        told = [f"needs {text}" for name, text in refusal.conflict.items() if name in refusal.needs]
        told += [text for name, text in refusal.conflict.items() if name not in refusal.needs]
        reason = told[0] if len(told) == 1 else f"no node meets all of this: {'; '.join(told)}"
        if refusal.rule:
            reason = f"{refusal.rule}, but {reason}"
        for name in refusal.conflict.keys() & refusal.needs.keys():
            free = sum(self._capacity.free(node).get(name, 0.0) for node in self.nodes)
            wanted = sum(each.needs.get(name, 0.0) * each.slots for each in self._refused.values())
            missing = round(wanted - free, 6)
            if missing > 0:
                reason += f"; the cluster is short of {missing:g} {name}"
            elif len(told) == 1:
                reason += f"; {free:g} are free in all, scattered"
        return reason


@dataclass
class _Refusal:
    """Ranks without a place that have the same needs, and the reason for the first of them."""

    needs: Mapping[str, float]
    conflict: dict[str, str]
    rule: str
    remedy: str
    members: list[RankRef] = field(default_factory=list)
    slots: int = 0


def _kind(wish: Wish) -> object:
    """Return a key that is equal for slots that fit on the same nodes: same number of ranks of each
    role, same needs."""
    return tuple(Counter(role for role, _ in wish.members).items()), tuple(wish.needs.items())


def _by_role(members: Sequence[RankRef]) -> dict[str, list[int]]:
    return {role: [number for each, number in members if each == role] for role, _ in members}


def violations(
    plan: PlacementPlan, cluster: ClusterView, sizes: Mapping[str, int] | None = None
) -> Iterator[tuple[Constraint, Assignment]]:
    """Yield the assignments that constraints of `plan` forbid, the newest first, each with its
    constraints.

    `sizes`: the number of ranks of roles of which further ranks are to be placed.
    """
    placed = Placed(cluster, {})
    on = dict[int, list[Assignment]]()
    for a in plan.assignments:
        if (slot := plan.slots[a.slot]).node in placed.nodes:
            on.setdefault(a.slot, []).append(a)
            placed.add(a.role, slot)
    decided = Counter([*(a.role for a in plan.assignments), *(u.role for u in plan.unplaced)])
    placed.left = Counter({role: size - decided[role] for role, size in (sizes or {}).items()})
    constraints = list(map(revived, plan.constraints))
    if odd := [each for each in constraints if not isinstance(each, Constraint)]:
        raise TypeError(f"{odd[0]!r} is no constraint")
    for number in sorted(on, reverse=True) if constraints else ():
        slot = plan.slots[number]
        ranks = _by_role([a.ref for a in on[number]])
        for a in on[number]:
            placed.add(a.role, slot, -1)
        node = placed.nodes[slot.node]
        for each in constraints:
            no, foreign = judged(each, ranks, node, placed)
            if (no, foreign) != judged(each, ranks, node, placed):
                raise faulty(each, "answers differently when it is asked again")
            if no or not foreign.isdisjoint(index for index, _ in slot.gpus):
                yield each, on[number][-1]
        for a in on[number]:
            placed.add(a.role, slot)


def broken(plan: PlacementPlan, cluster: ClusterView) -> tuple[Constraint, Assignment] | None:
    """Return an assignment that a constraint of `plan` forbids, with the constraint; None if all
    constraints hold."""
    return next(violations(plan, cluster), None)


T = TypeVar("T", bound=Hashable)


def smallest_conflict(violated: Iterable[frozenset[T]]) -> tuple[T, ...]:
    """Return a smallest set of demands such that every node violates one of them. `violated` has
    the violated demands of each node.

    If any demand of the set is dropped, a node meets the others. Among equal sets, the demands that
    come first in the order of the nodes win. The set is empty if there are no nodes. Raises
    `ValueError` if a node violates nothing.

        >>> smallest_conflict([frozenset({"gpu"}), frozenset({"gpu", "rack"}), frozenset({"rack"})])
        ('gpu', 'rack')
    """
    sets = list(dict.fromkeys(violated))
    if not all(sets):
        raise ValueError("a node meets every demand")
    demands = list(dict.fromkeys(demand for each in sets for demand in sorted(each, key=repr)))
    for size in range(1, len(demands) + 1):
        for chosen in combinations(demands, size):
            if all(not each.isdisjoint(chosen) for each in sets):
                return chosen
    return ()
