"""Put ranks that exchange the most on one node, so that heavy edges stay within nodes; and measure what still
crosses."""

from __future__ import annotations

from rolemesh_subgraph.scheduler import SubgraphOptions, SubgraphScheduler
from rolemesh_subgraph.traffic import Traffic, crossing

__all__ = ["SubgraphOptions", "SubgraphScheduler", "Traffic", "crossing"]
