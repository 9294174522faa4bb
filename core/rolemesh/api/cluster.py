"""The nodes that a backend has, as plain data that placement strategies read."""

from __future__ import annotations

from collections.abc import Collection

import msgspec


class NodeView(msgspec.Struct, frozen=True):
    """A node and its free resources. `id` is the backend's name for it, `host` an address that
    other nodes reach."""

    id: str
    host: str = "127.0.0.1"
    cpu: float = 1.0
    gpu: int | float = 0
    custom: dict[str, float] = {}
    labels: dict[str, str] = {}


class ClusterView(msgspec.Struct, frozen=True):
    """The nodes, in a stable order."""

    nodes: tuple[NodeView, ...]

    def without(self, nodes: Collection[str]) -> ClusterView:
        """Return the cluster without these nodes."""
        return ClusterView(tuple(node for node in self.nodes if node.id not in nodes))

    def node(self, node_id: str) -> NodeView:
        """Return the node with this id; raise `KeyError` if there is none."""
        return {node.id: node for node in self.nodes}[node_id]
