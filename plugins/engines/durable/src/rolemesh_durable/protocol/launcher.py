"""The interface that a backend offers to a master: a launcher that keeps agents on its nodes.

A master reaches its backend only through `Launcher`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.placement import PlacementPlan

__all__ = ["AgentPlace", "AgentStart", "Launcher", "Lost", "Received"]


class AgentPlace(msgspec.Struct, frozen=True):
    """The place of an agent: the node, and the resources that it holds there for its ranks."""

    agent: str
    node: str
    resources: dict[str, float]

    @classmethod
    def of(cls, agent: str, node: str, plan: PlacementPlan) -> AgentPlace:
        """Return the place with the node's bundle, and with whole GPUs if the plan uses more than one.

        Only a share of a single device can be reserved. Two halves of two devices would be granted as one device.
        """
        held = dict(plan.bundles()[node])
        devices = {index for slot in plan.slots if slot.node == node for index, _ in slot.gpus}
        return cls(agent, node, held | ({"gpu": float(len(devices))} if len(devices) > 1 else {}))


class AgentStart(msgspec.Struct, frozen=True):
    """An agent to start: its place, the number of this start, and its encoded `AgentConfig`, which repeats both."""

    place: AgentPlace
    incarnation: int
    config: bytes


Received: TypeAlias = Callable[[str, bytes], None]
"""``received(agent, message)``: takes an agent's encoded message. The message names its incarnation."""


class Lost(Protocol):
    """Called once when an incarnation of an agent is gone for any reason, or could not be started."""

    def __call__(self, agent: str, incarnation: int, why: str, node_lost: bool) -> None:
        """`why` is for people. `node_lost`: its node is gone too, and `Launcher.cluster` no longer has it."""


class Launcher(Protocol):
    """The master's access to agents: it starts, finds, kills and messages them.

    Agents outlive the master that started them. Their resources stay reserved until `stop`. All methods may be called
    from any thread. Only `start`, `reserve`, `attach` and `stop` may take seconds, so call them outside the master's
    loop. Messages may get lost, be repeated, or overtake one another, in both directions.
    """

    def open(self, received: Received, lost: Lost) -> None:
        """Set the callbacks, which are called from any thread. Call it once, before everything else."""

    def start(self, starts: Sequence[AgentStart]) -> None:
        """Reserve what is not yet reserved for these places, all or nothing, and start the agents there.

        An older incarnation of such an agent and its ranks must be dead before the new one runs. The method returns
        after the request. The agents then report, or `lost` is called. Raises `BackendError` if the resources cannot be
        reserved; then it releases what this call reserved.
        """

    def reserve(self, places: Sequence[AgentPlace]) -> None:
        """Reserve what is not yet reserved for these places, all or nothing: running agents are to have more ranks.

        Raises `BackendError` if that is impossible. May take seconds.
        """

    def attach(self, places: Sequence[AgentPlace], incarnations: Mapping[str, int]) -> None:
        """Find these agents after the master's restart, by `incarnations[agent]`; call `lost` for those that are gone.

        Agents of the job that are not among them are killed.
        """

    def send(self, agent: str, incarnation: int, message: bytes) -> None:
        """Pass an encoded `MasterToAgent` message on, without waiting. Drop it if that incarnation is not reachable."""

    def kill(self, agent: str, incarnation: int) -> None:
        """Send SIGKILL to this incarnation, even if it is stopped, and to its ranks. `lost` follows. Does not wait."""

    def cluster(self, *, grows: bool = False) -> ClusterView:
        """Return the nodes that are present now, including those that joined later. If the job `grows`, resources for
        which other jobs wait are left out."""

    def leaving(self) -> Mapping[str, float]:
        """Return the nodes that the backend knows will leave, each with its seconds; 0 if the time is unknown."""

    def beat(self) -> None:
        """Called by the master's loop in each turn. A backend may kill and restart a master that stops calling it."""

    def lose(self, node: str) -> bool:
        """Rehearsal: take a node away with all that is on it. False if this backend cannot emulate that."""

    def stop(self) -> None:
        """End all agents, release the reservations, and remove what dead agents left. Idempotent."""
