"""Requests, slots and plans: the data that placement strategies read and write. All of it is plain
and pure.

A *slot* is a share of one node (cores, devices) that is reserved for ranks. An *assignment* puts a
rank on a slot. Ranks on the same slot share its resources; they are collocated. The *bundle* of a
node is the sum of its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.rank_ref import OfRank, RankRef


class RoleRequest(msgspec.Struct, frozen=True):
    """The request of one role. `cpu`, `gpu` and `custom` are per rank."""

    role: str
    world_size: int
    cpu: float = 1.0
    gpu: float = 0.0
    custom: dict[str, float] = {}
    group: Literal["independent", "collective"] = "independent"

    @property
    def needs(self) -> dict[str, float]:
        """Return the resources that one rank needs, by name."""
        return {"cpu": self.cpu, "gpu": self.gpu, **self.custom}


class Transfer(msgspec.Struct, frozen=True):
    """The data that one role sends to another in a step, over all edges with the same pattern.

    - `pattern`: in an ``aligned`` transfer each rank sends to the consumers that share its rows;
      with equal world sizes that is the rank of the same number. In an ``all`` transfer every rank
      sends to every rank.
    - `bytes`: size of one step's values over all producers, declared or measured; None if unknown.
      A value that each consumer receives whole counts once per consumer.
    """

    src: str
    dst: str
    pattern: Literal["aligned", "all"] = "aligned"
    bytes: float | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """All roles of a job in the order of the job file, and the transfers between them (from the
    traced graph)."""

    roles: tuple[RoleRequest, ...]
    transfers: tuple[Transfer, ...] = ()

    def role(self, name: str) -> RoleRequest:
        """Return the request of role `name`; raise `KeyError` if there is none."""
        return {request.role: request for request in self.roles}[name]


class Slot(msgspec.Struct, frozen=True):
    """A share of one node. `gpus` maps device indices to the share taken of each; the shares sum to
    `gpu`.

    If `turns` is true, its ranks run one after the other in the order of the flow, and free device
    memory in between.
    """

    id: int
    node: str
    cpu: float
    gpu: float = 0.0
    gpus: tuple[tuple[int, float], ...] = ()
    custom: dict[str, float] = {}
    turns: bool = False


class Assignment(OfRank, frozen=True):
    """Rank `rank` of `role` runs on slot `slot`, with `share` of its resources. `rule` names the
    strategy and its reason.

    `peers` are ranks of other roles that were placed with this one on purpose: `RankContext.peers`.
    """

    slot: int
    share: float = 1.0
    rule: str = ""
    peers: tuple[RankRef, ...] = ()


class Unplaced(OfRank, frozen=True):
    """A rank for which no place was found, and the missing amounts.

    `remedy` is the advice for the user; "" advises to lower world sizes or resources, or to add
    nodes.
    """

    reason: str
    remedy: str = ""


class PlacementPlan(msgspec.Struct, frozen=True):
    """The slots, the ranks on them, and the constraints for later strategies.

    Strategies return a new plan. They never change a decision of an earlier strategy.
    """

    slots: tuple[Slot, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    constraints: tuple[Any, ...] = ()
    """Constraints; as plain data in a plan that was just decoded, see `validation.revive`."""

    def slot(self, slot_id: int) -> Slot:
        """Return the slot with this id (ids are positions)."""
        return self.slots[slot_id]

    def node_of(self, role: str, rank: int) -> str:
        """Return the node of a placed rank; raise `KeyError` if it has none."""
        return self.slots[{a.ref: a.slot for a in self.assignments}[RankRef(role, rank)]].node

    def placed(self) -> set[RankRef]:
        """Return the ranks that have a place."""
        return {a.ref for a in self.assignments}

    def without(self, nodes: Collection[str]) -> PlacementPlan:
        """Return the part of this plan on other nodes, with slots renumbered and without unplaced
        ranks."""
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
        """Return the resources to reserve on each node: ``{"node-a": {"cpu": 3.0, "gpu":
        1.0}}``."""
        result: dict[str, dict[str, float]] = {}
        for slot in self.slots:
            bundle = result.setdefault(slot.node, {"cpu": 0.0, "gpu": 0.0})
            for name, amount in {"cpu": slot.cpu, "gpu": slot.gpu, **slot.custom}.items():
                bundle[name] = bundle.get(name, 0.0) + amount
        return result


class Strategy(NamedTuple):
    """A placement strategy: its name, its hook `place` and, if it has one, its hook `replace`."""

    name: str
    place: Callable[[PlacementRequest, ClusterView, PlacementPlan], PlacementPlan | None]
    replace: (
        Callable[[PlacementPlan, tuple[str, ...], ClusterView], PlacementPlan | None] | None
    ) = None
