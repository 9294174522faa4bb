"""What a backend must offer a master beside its nodes: a launcher that keeps agents on them.

`Launcher` is the master's only way to touch a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.placement import PlacementPlan

__all__ = ["AgentPlace", "AgentStart", "Launcher", "Lost", "Received"]


class AgentPlace(msgspec.Struct, frozen=True):
    """Where an agent is to live: the node, and the resources it holds there for its ranks."""

    agent: str
    node: str
    resources: dict[str, float]

    @classmethod
    def of(cls, agent: str, node: str, plan: PlacementPlan) -> AgentPlace:
        """With the node's bundle, and whole GPUs where the plan touches more than one.

        A share can be reserved of a single device only: two halves of two devices would be granted as one device.
        """
        held = dict(plan.bundles()[node])
        devices = {index for slot in plan.slots if slot.node == node for index, _ in slot.gpus}
        return cls(agent, node, held | ({"gpu": float(len(devices))} if len(devices) > 1 else {}))


class AgentStart(msgspec.Struct, frozen=True):
    """An agent to start: its place, the number of this start, and its encoded `AgentConfig` (which says the same)."""

    place: AgentPlace
    incarnation: int
    config: bytes


Received: TypeAlias = Callable[[str, bytes], None]
"""``received(agent, message)``: an agent's encoded message; it says itself which incarnation it is from."""


class Lost(Protocol):
    """Told once when an incarnation of an agent is gone, for whatever reason, or could not be started."""

    def __call__(self, agent: str, incarnation: int, why: str, node_lost: bool) -> None:
        """`why` is for people. `node_lost`: its node has gone with it, and is no longer in `Launcher.cluster`."""


class Launcher(Protocol):
    """The master's hands: agents are started, found again, killed, and spoken to through it.

    Agents outlive the master that started them; what they hold on their nodes stays reserved until `stop`. All methods
    may be called from any thread. Only `start`, `attach` and `stop` may take seconds, so call them beside the master's
    loop. Messages may get lost, be repeated, or overtake one another, in both directions.
    """

    def open(self, received: Received, lost: Lost) -> None:
        """Say who is told what happens, from any thread; once, before everything else."""

    def start(self, starts: Sequence[AgentStart]) -> None:
        """Reserve what is not yet reserved for these places, all or nothing, and start the agents there.

        An older incarnation of such an agent is dead, and its ranks with it, before the new one runs. Returns when
        the agents have been asked for; they report by themselves, or are `lost`. Raises `BackendError` if the
        resources cannot be reserved; what this call has reserved is given back then.
        """

    def reserve(self, places: Sequence[AgentPlace]) -> None:
        """Reserve what is not yet reserved for these places, all or nothing: agents that run are to have more ranks.

        Raises `BackendError` if that cannot be. May take seconds.
        """

    def attach(self, places: Sequence[AgentPlace], incarnations: Mapping[str, int]) -> None:
        """After the master's restart: find these agents again, by `incarnations[agent]`; those gone are `lost`.

        Agents of the job that are not among them are killed.
        """

    def send(self, agent: str, incarnation: int, message: bytes) -> None:
        """Pass an encoded `MasterToAgent` message on, without waiting; dropped if that incarnation is not reachable."""

    def kill(self, agent: str, incarnation: int) -> None:
        """SIGKILL this incarnation, also a stopped one, and its ranks with it; `lost` follows. Does not wait."""

    def cluster(self) -> ClusterView:
        """The nodes that are present now, those that joined later included."""

    def leaving(self) -> Mapping[str, float]:
        """The nodes that the backend knows are going to leave, and in how many seconds; 0 for nobody has said when."""

    def beat(self) -> None:
        """Called by the master's loop at each turn: a master that no longer does is killed, and started again."""

    def lose(self, node: str) -> bool:
        """Rehearsal: take a node away with all that is on it. False where this backend cannot emulate that."""

    def stop(self) -> None:
        """End all agents, give back what was reserved, and remove what dead agents left. Idempotent."""
