"""The limits on a job's numbers of ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.graph.routes import RouteError, route
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["NO_SNAPSHOTS", "refusal"]

NO_SNAPSHOTS = "the job takes no snapshots, from which ranks could start: give it a ladder, or snapshots.persist_every"


def refusal(wanted: Mapping[str, int], config: MasterConfig, state: JobState) -> str:
    """Return why the job cannot have these world sizes on any cluster; "" if it may."""
    sizes = state.sizes
    for role, size in wanted.items():
        if role not in sizes:
            return f"the job has no role {role!r}; it has {', '.join(sizes)}"
        least, most = config.ranges.get(role, (1, 1 << 30))
        if not least <= size <= most:
            limits = f"from {least} to {most} ranks" if role in config.ranges else "at least one rank"
            return f"role {role} may have {limits} (its world_size in the job file), not {size}"
    changing = {role for role, size in wanted.items() if sizes[role] != size}
    if not config.job.snapshots.enabled:
        return NO_SNAPSHOTS
    for edge in config.job.graph.edges:
        role = config.job.graph.ops[edge.dst].role
        if role in changing and (why := delivery_of(edge).resize_refusal(role)):
            return why
    for ref, record in state.ranks.items():
        if record.launch.peers and ref.role in changing:
            return f"{ref} is packed with {', '.join(map(str, record.launch.peers))}"
        if len(record.launch.turns) > 1 and changing & {mate for mate, _ in record.launch.turns}:
            return f"{ref} takes turns on its slot: ranks that share one cannot be resized"
    return _no_route({**sizes, **wanted}, sizes, changing, config)


def _no_route(after: Mapping[str, int], before: Mapping[str, int], changing: set[str], config: MasterConfig) -> str:
    graph = config.job.graph
    for edge in graph.edges:
        src, dst = graph.ops[edge.src].role, graph.ops[edge.dst].role
        try:
            delivery_of(edge).route(after[src], after[dst])
            if dst in changing and edge.lag:  # values in flight are cut again
                route(edge.dst_partition, before[dst], edge.dst_partition, after[dst])
        except RouteError as error:
            return f"{edge.param!r} of {graph.ops[edge.dst].label}: {error}"
    return ""
