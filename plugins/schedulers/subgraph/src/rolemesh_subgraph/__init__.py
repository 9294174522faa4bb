"""Sub-graphs of ranks that give each other most stay on one node, so that the heavy edges cross none."""

from __future__ import annotations

from rolemesh_subgraph.scheduler import SubgraphOptions, SubgraphScheduler

__all__ = ["SubgraphOptions", "SubgraphScheduler"]
