"""The transports of the job file: which single edge uses which, and what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rolemesh.errors import JobFileError, nearest
from rolemesh.graph.logical import LogicalGraph
from rolemesh.job.prepared import Prepared
from rolemesh_durable.options import options_in

__all__ = ["by_edge", "wrong_transports"]


def by_edge(graph: LogicalGraph, each: Mapping[str, str]) -> dict[int, str]:
    """Return the transport of each edge that `each` names (``trainer.weights -> rollout.load``), by the edge's number.

    Two edges between the same calls have the same name.
    """
    return {number: each[name] for number, name in _names(graph).items() if name in each}


def wrong_transports(job: Prepared) -> Iterator[JobFileError]:
    """Yield the errors of the option `transports` and of ``plugins.transports``.

    The one between nodes must reach other nodes. Each single edge and each listed transport must be used.
    """
    remote = job.selection.used_by_engine["transports.remote"]
    if remote.cls.reach == "node":
        what = f"{remote.record.what} reaches ranks of its own node only"
        remedy = "name it in engine.options.transports.local"
        yield JobFileError(what, where=remote.where, remedy=remedy)
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


def _names(graph: LogicalGraph) -> dict[int, str]:
    labels = [op.label for op in graph.ops]
    return {edge.id: f"{labels[edge.src]} -> {labels[edge.dst]}" for edge in graph.edges}
