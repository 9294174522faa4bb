"""Nodes that are emulated on this machine, and their loss: a file marks a node as lost."""

from __future__ import annotations

import os
from pathlib import Path

from rolemesh.api.cluster import ClusterView

__all__ = ["LOST_PREFIX", "lose_node", "lost_nodes", "present"]

LOST_PREFIX = "lost-"


def lose_node(folder: Path, node: str) -> None:
    """Take the node away from the job with this private folder. When the file is removed, the node joins again,
    empty."""
    (folder / f"{LOST_PREFIX}{node}").touch()


def lost_nodes(folder: Path) -> set[str]:
    """Return the nodes that are lost now."""
    return {name.removeprefix(LOST_PREFIX) for name in os.listdir(folder) if name.startswith(LOST_PREFIX)}


def present(nodes: ClusterView, folder: Path) -> ClusterView:
    """Return `nodes` without the lost ones."""
    lost = lost_nodes(folder)
    return ClusterView(tuple(node for node in nodes.nodes if node.id not in lost))
