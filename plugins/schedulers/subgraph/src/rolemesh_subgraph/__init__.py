"""Sub-graphs of ranks that give each other most stay on one node, so that the heavy edges cross none; and what does."""

from __future__ import annotations

from rolemesh_subgraph.scheduler import SubgraphOptions, SubgraphScheduler
from rolemesh_subgraph.traffic import Traffic, crossing

__all__ = ["SubgraphOptions", "SubgraphScheduler", "Traffic", "crossing"]
