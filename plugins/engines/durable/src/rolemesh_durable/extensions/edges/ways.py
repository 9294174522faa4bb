"""The way that the values of each edge take, for ``rolemesh plan``: which transport carries them, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from rolemesh.api.cluster import ClusterView
from rolemesh.api.command import PlanOption
from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import route
from rolemesh.job.prepared import Prepared
from rolemesh.placement import PlacementPlan
from rolemesh_durable.extensions.edges.transports import Carriers, carriers
from rolemesh_durable.options import DurableOptions

__all__ = ["Way", "Ways", "ways"]

NAME = 48
"""Characters of an edge's name that leave room for the rest in a line of 100."""
SAME, FAR, ITSELF = "on one node", "between nodes", "within a rank"


class Way(NamedTuple):
    """How `pairs` pairs of a producer and a consumer rank pass the values of an edge."""

    edge: str
    where: str
    transport: str
    pairs: int
    why: str


class Ways(PlanOption):
    """Tells the way of each edge's values."""

    help: ClassVar[str] = "Tell the way of each value."

    def tell(self, job: Prepared, cluster: ClusterView, plan: PlacementPlan) -> tuple[dict[str, Any], str]:
        """Return the ways as JSON, and as lines. Other engines than durable have none."""
        if not isinstance(job.selection.engine.options, DurableOptions):
            return {}, ""
        found = [*ways(job, plan)]
        rows: list[Sequence[str]] = [("from → to (parameter)", "way", "pairs of ranks", "because")]
        rows += [(way.edge, way.transport, f"{way.pairs} {way.where}", way.why) for way in found]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        if widths[0] > NAME:  # a line of its own for each name
            rows = [(f"{row[0]}\n  ", *row[1:]) for row in rows]
        lines = ["  ".join((*map(str.ljust, row, widths), row[3])).rstrip() for row in rows]
        return {"ways": [way._asdict() for way in found]}, "\n".join(("Ways of values", *lines)) if found else ""


def ways(job: Prepared, plan: PlacementPlan) -> Iterator[Way]:
    """Yield the ways of each edge, in the order of the flow. Ranks without a place have none."""
    carried = carriers(job, several_nodes=True)
    nodes = {(at.role, at.rank): plan.slots[at.slot].node for at in plan.assignments}
    for edge in job.graph.edges:
        src, dst = job.graph.ops[edge.src], job.graph.ops[edge.dst]
        name = f"{src.label} → {dst.label}({edge.param})"
        for where, pairs in sorted(_pairs(job, edge, nodes).items()):
            transport, why = _way(job, edge, where, carried)
            yield Way(name, where, transport, pairs, why)


def _pairs(job: Prepared, edge: Edge, nodes: dict[tuple[str, int], str]) -> Counter[str]:
    src, dst = job.graph.ops[edge.src].role, job.graph.ops[edge.dst].role
    m, n = job.job.spec.roles[src].world_size, job.job.spec.roles[dst].world_size
    path, found = route(edge.src_partition, m, edge.dst_partition, n), Counter[str]()
    for consumer in range(n):
        for producer in path.sources(consumer):
            ends = (src, producer), (dst, consumer)
            if all(end in nodes for end in ends):
                near = SAME if nodes[ends[0]] == nodes[ends[1]] else FAR
                found[ITSELF if ends[0] == ends[1] else near] += 1
    return found


def _way(job: Prepared, edge: Edge, where: str, carried: Carriers) -> tuple[str, str]:
    """Return the transport, and the reason."""
    src = job.graph.ops[edge.src]
    if where == ITSELF:
        return "memory", "one rank does both"
    used = carried.edges.get(edge.id, ("local", carried.remote))[where == FAR]
    name = carried.transports[src.role][used].record.name
    if "." in used:
        return name, "transports.each"
    if name == "shm" and src.operator in getattr(job.selection.roles[src.role].cls, "lends", ()):
        return "shm, lent", f"{src.role} lends it"
    return name, f"transports.{used if used == 'weights' else 'local' if where == SAME else 'remote'}"
