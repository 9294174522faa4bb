"""What a backend must offer: a view of its nodes, and a launcher that keeps agents on them.

`ClusterView` is plain data that placement strategies read. `Launcher` is the master's only way to touch a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

__all__ = ["AgentPlace", "ClusterView", "Launcher", "NodeView"]


class NodeView(msgspec.Struct, frozen=True):
    """A node with what is free on it. `id` is the backend's name for it, `host` an address that other nodes reach."""

    id: str
    host: str = "127.0.0.1"
    cpu: float = 1.0
    gpu: int | float = 0
    custom: dict[str, float] = {}
    labels: dict[str, str] = {}


class ClusterView(msgspec.Struct, frozen=True):
    """The nodes, in a stable order."""

    nodes: tuple[NodeView, ...]

    def node(self, node_id: str) -> NodeView:
        """The node with this id; `KeyError` if there is none."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)


class AgentPlace(msgspec.Struct, frozen=True):
    """Where an agent is to live: the node, and the resources it holds there for its ranks."""

    agent: str
    node: str
    resources: dict[str, float]


class Launcher(Protocol):
    """The master's hands. Calls do not block on agents; what happens arrives through the callbacks of `start`."""

    def start(
        self,
        places: Sequence[AgentPlace],
        configs: Mapping[str, bytes],
        received: Callable[[str, bytes], None],
        lost: Callable[[str, str], None],
    ) -> None:
        """Reserve the bundles and start an agent on each, with its encoded `AgentConfig` from `configs`.

        `received(agent, message)` is called for what agents send, `lost(agent, why)` when one is gone, from any
        thread. Raises `BackendError` if the bundles cannot be reserved; nothing is left behind then.
        """

    def send(self, agent: str, message: bytes) -> None:
        """Deliver an encoded protocol message to an agent, in order, without waiting."""

    def stop(self) -> None:
        """End all agents and give back what was reserved. Idempotent."""
