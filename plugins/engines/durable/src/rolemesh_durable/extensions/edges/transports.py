"""The transports of the job file: which single edge uses which, and what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rolemesh.errors import JobFileError, nearest
from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.job.prepared import Prepared
from rolemesh.plugins.select import Selected
from rolemesh_durable.options import options_in

__all__ = ["Carriers", "carriers", "wrong_transports"]

OF_TENSORS = {"assemble", "pieces", "reshard", "shard"}
"""The kinds of routes of named tensors (`rolemesh.graph.routes`)."""


class Carriers(NamedTuple):
    """The `transports` of each role by their names in this job, and which edge uses which.

    ``local`` is within a node, and `remote` between nodes; "" if there is one node only. `edges` has those of edges
    with their own: within a node, and between nodes.
    """

    transports: dict[str, dict[str, Any]]
    remote: str
    edges: dict[int, tuple[str, str]]


def carriers(job: Prepared, *, several_nodes: bool, use: Callable[[Selected], Any] = lambda each: each) -> Carriers:
    """Return ``use(transport)`` of the transports of a job, and which edge uses which."""
    used, listed = job.selection.used_by_engine, job.selection.declared
    chosen = {"local": used["transports.local"]}

    def name_of(option: str) -> str:
        """Return the name of an option's transport. The same plugin twice is one: it opens its addresses once."""
        selected = used[f"transports.{option}"]
        for name, other in chosen.items():
            if (other.record, other.options) == (selected.record, selected.options):
                return name
        chosen[option] = selected
        return option

    remote, edges = name_of("remote") if several_nodes else "", dict[int, tuple[str, str]]()
    common = dict(chosen)
    transports = {role: common.copy() for role in job.job.spec.roles}
    each, names = options_in(job.selection).transports.each, _names(job.graph)
    for edge in job.graph.edges:
        if (named := each.get(names[edge.id])) is not None:
            own = f"edges.{named}"
            chosen[own] = listed["transports", named]
            edges[edge.id] = own, own if chosen[own].cls.reach == "network" else remote
        elif several_nodes and _of_tensors(job, edge):
            edges[edge.id] = "local", name_of("weights")
        for end in (edge.src, edge.dst):
            transports[job.graph.ops[end].role] |= {name: chosen[name] for name in edges.get(edge.id, ()) if name}
    used_by = {role: {name: use(each) for name, each in own.items()} for role, own in transports.items()}
    return Carriers(used_by, remote, edges)


def wrong_transports(job: Prepared) -> Iterator[JobFileError]:
    """Yield the errors of the option `transports` and of ``plugins.transports``.

    The one between nodes must reach other nodes. Each single edge and each listed transport must be used.
    """
    remote, weights = (job.selection.used_by_engine[f"transports.{key}"] for key in ("remote", "weights"))
    for far in (remote, weights):
        if far.cls.reach == "node":
            what = f"{far.record.what} reaches ranks of its own node only"
            remedy = "name it in engine.options.transports.local"
            yield JobFileError(what, where=far.where, remedy=remedy)
    if not weights.cls.own_sockets and (remote.record, remote.options) != (weights.record, weights.options):
        what = f"{weights.record.what} binds the rank's socket, so it cannot be the transport of some edges only"
        remedy = "name it in engine.options.transports.remote, which is for all edges"
        yield JobFileError(what, where=weights.where, remedy=remedy)
    each = options_in(job.selection).transports.each
    listed = {name: use for (kind, name), use in job.selection.declared.items() if kind == "transports"}
    known = list(_names(job.graph).values())
    for edge, name in each.items():
        where = job.job.where(("engine", "options", "transports", "each"))
        if edge not in known:
            yield JobFileError(f"the flow has no edge {edge!r}", where=where, remedy=nearest(edge, known))
        if name not in listed:
            remedy = f"list it: plugins: {{transports: [{{use: {name}}}]}}"
            yield JobFileError(
                f"edge {edge!r} names the transport {name!r}, which is not listed", where=where, remedy=remedy
            )
        elif not listed[name].cls.own_sockets:
            remedy = "name it in engine.options.transports.remote, which is for all edges"
            what = f"{listed[name].record.what} binds the rank's socket, so it cannot be the transport of single edges"
            yield JobFileError(what, where=where, remedy=remedy)
    for name in listed.keys() - set(each.values()):
        where, remedy = job.job.where(("plugins", "transports")), "name it in engine.options.transports.each"
        yield JobFileError(f"no edge uses the transport {name!r}", where=where, remedy=remedy)


def _of_tensors(job: Prepared, edge: Edge) -> bool:
    """Return True if the values of an edge are named tensors, such as weights."""
    m, n = (job.job.spec.roles[job.graph.ops[end].role].world_size for end in (edge.src, edge.dst))
    return route(edge.src_partition, m, edge.dst_partition, n).kind in OF_TENSORS


def _names(graph: LogicalGraph) -> dict[int, str]:
    labels = [op.label for op in graph.ops]
    return {edge.id: f"{labels[edge.src]} -> {labels[edge.dst]}" for edge in graph.edges}
