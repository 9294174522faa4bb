"""The records that a restarted rank takes over from its former generations: values for consumers, and orphans.

An orphan is a chunk that a former generation sent after the step that its successor was restored to. The successor
makes it again. A consumer that has received the orphan does not look at the value again, so the orphan's memory stays
until no consumer can need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from rolemesh.graph.logical import LogicalGraph
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.rank.effects import Item
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.records import FormerRecord, InFlight

__all__ = ["FormerLog", "FormerMemory", "carry_over", "take_over"]


R = TypeVar("R", bound=FormerRecord)
C = TypeVar("C", bound=InFlight)
Read = TypeVar("Read", bound=FormerRecord, contravariant=True)
Stored = TypeVar("Stored", bound=InFlight, contravariant=True)
Found = TypeVar("Found", bound=Item, covariant=True)
T = TypeVar("T", bound=Item)


class FormerLog(Protocol[Read]):
    """The send log, as far as former generations have written it."""

    def is_orphan(self, record: Read) -> bool:
        """Return True if a later generation was restored to a step before that of `record`."""

    def is_whole(self, record: Read) -> bool:
        """Return True if `record` is a chunk of a call of which the log has all."""


class FormerMemory(Protocol[Read, Stored, Found]):
    """The memory to which the records of a log refer."""

    def item(self, record: Read) -> Found | None:
        """The chunk of `record`, as it is sent; None if the rank had freed it already."""

    def retain(self, record: Read) -> None:
        """The chunk of `record` is an orphan: keep its memory until no consumer can need it."""

    def line(self, record: Read) -> None:
        """`record` has lines of metrics that the agent may lack."""

    def partial(self, record: Read) -> None:
        """`record` has the line of metrics that the rank had begun when it took its snapshot."""

    def free_rest(self) -> None:
        """The rank has taken over all records: free the memory of former generations that none of them needs."""

    def stored(self, record: Stored) -> Found:
        """The chunk of a persisted snapshot, as it is sent. Waits for memory."""


def take_over(
    ports: Ports[T],
    log: FormerLog[R],
    records: Iterable[R],
    ours: Iterable[R],
    memory: FormerMemory[R, Any, T],
    layout: Layout,
    resume: int,
    *,
    from_disk: bool,
) -> None:
    """Give the ports the `records` of a rank that is restored to `resume`, as if this generation had sent them.

    `ours` are the records of this timeline, which bind the choices of calls. The rank takes no records made for ranks
    before `layout`. `from_disk`: the rank has what it sent up to `resume` from a persisted snapshot, so the records are
    orphans, except the values that the log has as a whole. Call this before ``ports.open``.
    """
    out_edges = {out_edge.edge.id: out_edge for out_edge in ports.out_edges}
    known = () if from_disk else ours
    ports.recall(resume, [record for record in known if record.kind == RecordKind.DECISION])
    for record in records:
        orphan, kind = log.is_orphan(record), record.kind
        if kind == RecordKind.LINE:
            if not orphan:
                memory.line(record)
        elif kind == RecordKind.PARTIAL:
            if not orphan and record.step == resume:
                memory.partial(record)
        elif kind == RecordKind.WHOLE:
            out = ports.outputs.get(record.call)
            if not orphan and record.step > resume and out is not None:
                out.whole(record)
        elif kind in (RecordKind.CHUNK, RecordKind.END):
            again = record.step > resume and log.is_whole(record)
            if orphan or (from_disk and not again) or _is_void(record, ports.job.graph, layout):
                memory.retain(record)
                continue
            item, out_edge = None, out_edges[record.edge]
            if kind == RecordKind.CHUNK and (item := memory.item(record)) is None:
                continue
            if again and out_edge.made is not None:
                out_edge.made = max(out_edge.made, record.step)
            if record.step + out_edge.delivery.soonest >= ports.job.steps:
                memory.retain(record)  # only a longer job would take it
                continue
            ports.outputs[out_edge.edge.src].take_over(out_edge, item, record, again=again)


def carry_over(
    ports: Ports[T],
    records: Iterable[C],
    memory: FormerMemory[Any, C, T],
    before: Mapping[str, int],
    now: Mapping[str, int],
) -> None:
    """Log what the rank had sent when its snapshot was persisted: the next persisted snapshot needs it, too.

    No consumer asks for it, as consumers read the snapshot themselves. `before` and `now` are the world sizes then and
    now; edges from and to roles of another size are left out. Call this before ``ports.open``.
    """
    graph, role = ports.job.graph, ports.mail.site.role
    same = {each for each, size in now.items() if before.get(each) == size}
    out_edges = {out.edge.id: out for out in ports.out_edges if {role, graph.ops[out.edge.dst].role} <= same}
    for record in records:
        if record.kind == RecordKind.DECISION:
            if ports.log is not None:
                ports.log.decide(record.scope, record.step, record.hold, record.body, persists=True)
        elif (out_edge := out_edges.get(record.edge)) is not None:
            item = None if record.kind == RecordKind.END else memory.stored(record)
            out_edge.put(item, record.step, record.chunk, record.last, record.consumers)


def _is_void(record: FormerRecord, graph: LogicalGraph, layout: Layout) -> bool:
    """Return True if a former generation made the record for ranks of an earlier layout."""
    if not layout.number:
        return False
    edge = graph.edges[record.edge]
    return any(layout.is_void(graph.ops[end].role, record.step) for end in (edge.src, edge.dst))
