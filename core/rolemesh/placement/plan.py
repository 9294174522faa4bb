"""Requests, slots and plans: the data that placement strategies read and write. All of it is plain
and pure.

A *slot* is a share of one node (cores, devices) reserved for ranks; an *assignment* puts a rank on
a slot. Ranks that share a slot share its resources, which is what collocation means. A node's
*bundle* is the sum of its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import msgspec

from rolemesh.api.cluster import ClusterView


class RoleRequest(msgspec.Struct, frozen=True):
    """What one role asks for; `cpu`, `gpu` and `custom` are per rank."""

    role: str
    world_size: int
    cpu: float = 1.0
    gpu: float = 0.0
    custom: dict[str, float] = {}
    group: Literal["independent", "collective"] = "independent"

    @property
    def needs(self) -> dict[str, float]:
        """What one rank needs, by name."""
        return {"cpu": self.cpu, "gpu": self.gpu, **self.custom}


class Flow(msgspec.Struct, frozen=True):
    """What goes from one role to another in a step, over all edges of one pattern between them.

    `pattern`: in ``aligned`` flows rank i of m gives to the ranks of n that share its rows (its
    counterpart, where the world sizes are equal), in ``all`` flows every rank gives to every rank.
    `bytes` is the size of one step's values, all producers together, declared or measured; None if
    nobody knows. A value that each consumer gets whole counts once for each of them.
    """

    src: str
    dst: str
    pattern: Literal["aligned", "all"] = "aligned"
    bytes: float | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """All roles of a job, in the job file's order, and what flows between them (from the traced
    graph)."""

    roles: tuple[RoleRequest, ...]
    flows: tuple[Flow, ...] = ()

    def role(self, name: str) -> RoleRequest:
        """The request of role `name`; `KeyError` if there is none."""
        return {request.role: request for request in self.roles}[name]


class Slot(msgspec.Struct, frozen=True):
    """A share of one node. `gpus` are device indices on the node with the share taken of each,
    summing to `gpu`.

    `turns`: its ranks run one after the other, in the order of the flow, and give memory back in
    between.
    """

    id: int
    node: str
    cpu: float
    gpu: float = 0.0
    gpus: tuple[tuple[int, float], ...] = ()
    custom: dict[str, float] = {}
    turns: bool = False


class Assignment(msgspec.Struct, frozen=True):
    """Rank `rank` of `role` runs on slot `slot`, with `share` of its resources. `rule` says who
    decided, and why.

    `peers` are ranks of other roles that this one should know of; it finds them in
    `RankContext.peers`.
    """

    role: str
    rank: int
    slot: int
    share: float = 1.0
    rule: str = ""
    peers: tuple[tuple[str, int], ...] = ()


class Unplaced(msgspec.Struct, frozen=True):
    """A rank for which no place was found, and what is missing, in numbers.

    `remedy` is what the user can do about it; "" is to lower world sizes or resources, or to add
    nodes.
    """

    role: str
    rank: int
    reason: str
    remedy: str = ""


class PlacementPlan(msgspec.Struct, frozen=True):
    """Slots, who is on them, and what all strategies after have to keep to.

    Strategies return a new plan; they never change what an earlier one decided.
    """

    slots: tuple[Slot, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    constraints: tuple[Any, ...] = ()
    """`Constraint`s, or their data in a plan that was decoded: see `validation.revive`."""

    def slot(self, slot_id: int) -> Slot:
        """The slot with this id (ids are positions)."""
        return self.slots[slot_id]

    def node_of(self, role: str, rank: int) -> str:
        """The node of a placed rank; `KeyError` if it has none."""
        return self.slots[{(a.role, a.rank): a.slot for a in self.assignments}[role, rank]].node

    def placed(self) -> set[tuple[str, int]]:
        """The ranks that have a place."""
        return {(a.role, a.rank) for a in self.assignments}

    def without(self, nodes: Collection[str]) -> PlacementPlan:
        """What of this plan is on other nodes, with slots numbered again; without those who have no
        place."""
        kept = [slot for slot in self.slots if slot.node not in nodes]
        number = {slot.id: position for position, slot in enumerate(kept)}
        return PlacementPlan(
            tuple(msgspec.structs.replace(slot, id=number[slot.id]) for slot in kept),
            tuple(
                msgspec.structs.replace(a, slot=number[a.slot])
                for a in self.assignments
                if a.slot in number
            ),
            constraints=self.constraints,
        )

    def bundles(self) -> dict[str, dict[str, float]]:
        """Per node the resources to reserve there: ``{"node-a": {"cpu": 3.0, "gpu": 1.0}}``."""
        result: dict[str, dict[str, float]] = {}
        for slot in self.slots:
            bundle = result.setdefault(slot.node, {"cpu": 0.0, "gpu": 0.0})
            for name, amount in {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}.items():
                bundle[name] = bundle.get(name, 0.0) + amount
        return result


class Strategy(NamedTuple):
    """A placement strategy as it is asked: its name, its hook `place` and, where it has one, its
    hook `replace`."""

    name: str
    place: Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None]
    replace: (
        Callable[[PlacementPlan, tuple[str, ...], ClusterView], PlacementPlan | None] | None
    ) = None
