"""A rank's ends of its edges: the graph's routes compiled to the ports of each operator call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Generic, Protocol, TypeVar

from rolemesh.graph.logical import Edge, OpCall
from rolemesh.graph.routes import Route
from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.delivery import ConsumerEnd, Delivery, InPort, delivery_of
from rolemesh_durable.protocol.edge import hold_of
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.protocol.rank.effects import Effects, Item, Log
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.out_edge import OutEdge, free
from rolemesh_durable.protocol.rank.out_port import OutPort
from rolemesh_durable.protocol.rank.page import IDLE, SNAPSHOT, STEP
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.protocol.rank.version_port import Annex, GroupPort, VersionPort
from rolemesh_durable.protocol.snapshot_plan import ENDLESS

__all__ = ["Orphans", "Ports"]

T = TypeVar("T", bound=Item)
Taken = TypeVar("Taken", bound=Item, contravariant=True)


class Orphans(Protocol):
    """The memory that former generations have left (`rolemesh_durable.rank.former_memory.Inherited`)."""

    nbytes: int

    def awaits_commit(self, step: int) -> bool:
        """Return True if the commit of `step` would free some of this memory."""


class Decision(Protocol):
    """The record in a log of a former generation's decision."""

    @property
    def scope(self) -> str:
        """Its scope (`rolemesh_durable.protocol.delivery.Delivery.scope`)."""

    @property
    def step(self) -> int:
        """The step that it belongs to."""

    @property
    def body(self) -> bytes:
        """Its content."""


class Begun(Log[Taken], Protocol[Taken]):
    """A log that can be written from scratch."""

    def begin_again(self) -> None:
        """Forget the written records: another process has removed the files."""


class Ports(Generic[T]):
    """All ports of one rank. `inputs[op]` are a call's in-ports by parameter, `outputs[op]` its out-port, if any.

    The ports send no ask, and answer none, before `open`.
    """

    def __init__(
        self, job: JobShape, effects: Effects[T], *, resume: int = -1, barrier: GroupBarrier | None = None
    ) -> None:
        """The rank continues after step `resume`. `barrier` is that of its group, if it has one."""
        self.job, self.mail, self.memory, self.log = job, effects.mail, effects.memory, effects.log
        self.waits, self.resume = effects.waits, resume
        self.inputs: dict[int, list[tuple[str, InPort]]] = {}
        self.outputs: dict[int, OutPort[T]] = {}
        self._annexes: dict[int, Annex] = {}
        self.out_edges: list[OutEdge[T]] = []
        self.orphans: Orphans | None = None
        """The memory that former generations have left; None if there were none."""
        self.committed = -1
        self._effects, self._world_sizes, self._barrier = effects, dict(job.world_sizes), barrier
        self.fields, self._until = effects.page.fields, effects.waits.until
        self._begin(job.graph.edges, resume)

    def inherit(self, orphans: Orphans) -> None:
        """Count `orphans`, the memory of former generations, in the rank's kept bytes."""
        self.orphans = orphans

    def annex(self, call: int, annex: Annex) -> None:
        """Let `annex` add to the log's records of complete values of `call`. Call this before `take_over`."""
        self._annexes[call] = annex

    def _begin(self, edges: Sequence[Edge], resume: int) -> None:
        """Make this rank's ends of `edges`. The rank continues after step `resume`."""
        role, graph, sizes = self.mail.site.role, self.job.graph, self._world_sizes
        found = []
        for edge in edges:
            src, dst = graph.ops[edge.src].role, graph.ops[edge.dst].role
            if role in (src, dst):
                delivery = delivery_of(edge)
                found.append((delivery, delivery.route(sizes[src], sizes[dst])))
        for delivery, route in found:
            if graph.ops[delivery.edge.dst].role == role:
                self._begin_input(delivery, route, resume)
        for delivery, route in found:
            if graph.ops[delivery.edge.src].role == role:
                self._begin_output(delivery, route, resume)

    def _hold(self, edge: Edge) -> int:
        return hold_of(edge, self.job.graph, self.job.activity, self.job.unrepeated)

    def _begin_input(self, delivery: Delivery, route: Route, resume: int) -> None:
        job, site, edge = self.job, self.mail.site, delivery.edge
        producer, size = job.graph.ops[edge.src], self._world_sizes[site.role]
        end = ConsumerEnd(
            role=producer.role,
            sources=route.sources(site.rank),
            how=route.combine,
            first=delivery.first_needed(job.graph, job.activity, job.unrepeated, resume),
            hold=self._hold(edge),
            calls=job.activity.periods[edge.dst] or Period(),
            rank=site.rank,
            ranks=size,
            revocable=self.log is not None and self._varies(producer),
        )
        port = delivery.port(end, self._effects)
        for value in edge.initial:
            begins = job.activity.first(edge)
            port.give({made: deepcopy(value) for made in range(-edge.lag, begins)}, begins - 1)
        self.inputs.setdefault(edge.dst, []).append((edge.param, port))

    def _begin_output(self, delivery: Delivery, route: Route, resume: int) -> None:
        edge = delivery.edge
        producer, consumer = self.job.graph.ops[edge.src], self.job.graph.ops[edge.dst]
        varies = self.log is not None and self._varies(producer)
        sends = [(send.selection, send.consumers) for send in route.sends(self.mail.site.rank)]
        together = varies and self._barrier is not None  # then ranks that send nothing agree too
        if edge.src not in self.outputs and (sends or together):
            self.outputs[edge.src] = self._out_port(producer, varies)
        if sends:
            out = OutEdge(self.job, self._effects, delivery, consumer.role, sends, self._hold(edge))
            if varies and self.log is not None and not self.log.sure:
                out.made = resume
            self.out_edges.append(out)
            self.outputs[edge.src].add(out)

    def _varies(self, op: OpCall) -> bool:
        """Return True if a second call may give another value, and all its consumers need the same version."""
        outputs = self.job.graph.outputs(op.id)
        return op.role in self.job.varying and all(delivery_of(edge).one_version for edge in outputs)

    def _out_port(self, op: OpCall, varies: bool) -> OutPort[T]:
        job, effects = self.job, self._effects
        if not varies:
            return OutPort(job, effects, self)
        if self._barrier is not None:
            return GroupPort(job, effects, self, op.id, self.out_edges, self._annexes, self._barrier)
        return VersionPort(job, effects, self, op.id, self.out_edges, self._annexes)

    def relayout(self, layout: Layout, changed: Collection[str]) -> tuple[int, ...]:
        """Replace the edges from and to the `changed` roles, which have other ranks after the step of `layout`.

        Returns these edges. The agent sends the addresses of the ranks afterwards.
        """
        ops, role = self.job.graph.ops, self.mail.site.role
        self.mail.forget(changed)
        self._world_sizes |= layout.sizes
        edges = [each for each in self.job.graph.edges if {ops[each.src].role, ops[each.dst].role} & {*changed}]
        edges = [each for each in edges if role in (ops[each.src].role, ops[each.dst].role)]
        gone = {each.id for each in edges}
        self.out_edges[:] = [out_edge for out_edge in self.out_edges if out_edge.edge.id not in gone]
        for op, ports in self.inputs.items():
            self.inputs[op] = [(param, port) for param, port in ports if port.edge.id not in gone]
        for out in self.outputs.values():
            out.drop(gone)
        self._begin(edges, layout.step)
        for ports in self.inputs.values():
            ports.sort(key=lambda named: named[1].edge.id)  # a call's arguments keep the order of the flow
        for port in self.ins:
            if port.edge.id in gone:
                port.recall(layout.step, {})
        for out_edge in self.out_edges:
            if out_edge.edge.id in gone:
                out_edge.open()
        return tuple(gone)

    @property
    def wired(self) -> bool:
        """True if the rank knows the addresses of all ranks at the other ends."""
        return all(port.wired for port in self.ins) and all(out_edge.wired for out_edge in self.out_edges)

    @property
    def ins(self) -> Iterator[InPort]:
        """The in-ports of all calls."""
        return (port for ports in self.inputs.values() for _, port in ports)

    @property
    def kept_bytes(self) -> int:
        """Bytes kept for consumers that may restart: slots, the log, and small values."""
        kept = self.memory.used_bytes
        for out_edge in self.out_edges:
            kept += out_edge.state.kept_bytes
        if self.log is not None:
            kept += self.log.nbytes
        return kept if self.orphans is None else kept + self.orphans.nbytes

    def waits_for_room(self, step: int) -> bool:
        """Return True if a value of `step` must wait for a possible commit that frees some of `kept_bytes`."""
        kept, most = self.kept_bytes, self.job.retention_bytes
        self.memory.within(kept, most)
        return kept > most and self.awaits_commit(step)

    def awaits_commit(self, step: int) -> bool:
        """Return True if a commit that is possible while the rank is at `step` would free memory."""
        reachable = self.reachable(step)
        return (
            any(out_edge.state.awaits_commit(reachable) for out_edge in self.out_edges)
            or (self.log is not None and self.log.awaits_commit(reachable))
            or (self.orphans is not None and self.orphans.awaits_commit(reachable))
        )

    def reachable(self, step: int) -> int:
        """Return the newest commit that is possible while the rank is at `step`.

        It is a step of which this rank has a snapshot, and of which all others will have one, whatever they wait for.
        """
        snapshots = self.job.snapshots
        newest = self.fields[SNAPSHOT] + 1 if snapshots.enabled else step
        return snapshots.newest_before(min(step, newest))

    def open(self, peers: Sequence[Peer] = ()) -> None:
        """Ask the producers among `peers`, and answer the consumers' asks."""
        for out_edge in self.out_edges:
            out_edge.open()
        self.rewire(peers)

    def rewire(self, peers: Sequence[Peer]) -> None:
        """Connect to these peers. The conversation with a peer of a new generation begins again."""
        self.mail.connect(peers)
        for out_edge in self.out_edges:
            out_edge.rewire()
        for port in self.ins:
            port.ask()

    def commit(self, step: int) -> None:
        """Note that `step` is committed: forget the values retained for it, and give back unused memory."""
        self.committed = max(self.committed, step)
        for out_edge in self.out_edges:
            free(out_edge.state.committed(step))
        self.memory.trim(self.fields[STEP])

    def log_again(self, log: Begun[T]) -> None:
        """Write the kept values to a new log, after another process removed the files.

        Raises `TransportError` for a value of which this process has no copy either.
        """
        self.memory.forget_lost()
        log.begin_again()
        for item in {id(kept.item): kept.item for out_edge in self.out_edges for kept in out_edge.state.kept}.values():
            if item is not None:
                item.rescue()
        for out in self.outputs.values():
            out.write_again(log)
        for port in self.ins:
            port.log_again(log)

    def recall(self, resume: int, decisions: Iterable[Decision]) -> None:
        """Repeat `decisions`, which former generations made, in order. The rank continues after step `resume`."""
        found: dict[str, dict[int, bytes]] = {}
        for record in decisions:
            found.setdefault(record.scope, {})[record.step] = record.body
        for port in self.ins:
            port.recall(resume, found.get(port.scope, {}))

    def end(self, step: int) -> None:
        """Note that `step` was the last one: the ports take nothing that still comes."""
        for port in self.ins:
            port.end(step)

    def pin(self, steps: Sequence[int]) -> None:
        """Keep the values in flight across these steps, whose snapshots are being persisted."""
        for out_edge in self.out_edges:
            free(out_edge.state.pin(steps))

    def drain(self, last: int = ENDLESS) -> None:
        """Wait until all consumers have released their values up to step `last`, so that the slots may go.

        Raises `Stopping`.
        """
        self.mail.flush()
        self._until(lambda: not any(out.state.awaits_release(last - out.edge.lag) for out in self.out_edges), IDLE)
