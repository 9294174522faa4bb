"""A rank's ends of its edges: the graph's routes compiled to the ports of each operator call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from time import monotonic
from typing import Protocol

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import route
from rolemesh.graph.schedule import Activity, Period
from rolemesh_durable.checkpoint.send_log import LogRecord, SendLog
from rolemesh_durable.protocol.edge import first_needed, hold_of
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.master_config import ENDLESS, SnapshotPlan
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.rank.barrier import GroupBarrier
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.first_port import FirstPort
from rolemesh_durable.rank.in_port import InPort
from rolemesh_durable.rank.items_port import ItemsPort
from rolemesh_durable.rank.mates import Mates
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.newest_port import NewestPort
from rolemesh_durable.rank.out_port import OutEdge, OutPort, free
from rolemesh_durable.rank.status_page import SNAPSHOT, STEP, StatusPage
from rolemesh_durable.rank.version_port import GroupPort, VersionPort

__all__ = ["Ports"]


PORTS = {(False, False): InPort, (False, True): NewestPort, (True, False): ItemsPort, (True, True): FirstPort}
"""By whether the value was shared out by demand, and whether its lag is bounded."""


class Orphans(Protocol):
    """What former generations have left (`rolemesh_durable.rank.takeover.Inheritance`)."""

    nbytes: int

    def awaits_commit(self, step: int) -> bool:
        """Whether the commit of `step` would free something here."""


class Ports:
    """All ports of one rank. `inputs[op]` are a call's in-ports by parameter, `outputs[op]` its out-port, if any.

    Nothing is asked for, and no ask is answered, before `open`.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        activity: Activity,
        world_sizes: Mapping[str, int],
        endpoint: Endpoint,
        status_page: StatusPage,
        meter: Meter,
        *,
        steps: int,
        retention: bool = False,
        retention_bytes: int = 1 << 30,
        snapshots: SnapshotPlan | None = None,
        unrepeated: Collection[str] = (),
        varying: Collection[str] = (),
        resume: int = -1,
        log: SendLog | None = None,
        barrier: GroupBarrier | None = None,
    ) -> None:
        """`retention_bytes`: a put waits for a commit while what is kept for steps that are not committed takes more.

        The rank goes on after step `resume`; `log` gets what it sends. `unrepeated` are the roles that are restored
        from snapshots alone, `varying` those that may make something else the second time. `barrier` is that of the
        rank's group, if it has one.
        """
        self.endpoint, self.status_page, self.meter = endpoint, status_page, meter
        self.activity, self.steps = activity, steps
        self.retention, self.retention_bytes = retention, retention_bytes
        self.snapshots, self.log = snapshots or SnapshotPlan(), log
        self.inputs: dict[int, list[tuple[str, InPort]]] = {}
        self.outputs: dict[int, OutPort] = {}
        self.mates: dict[int, Mates] = {}
        """Of calls that share their rows out: with whom."""
        self.ways: list[OutEdge] = []
        self.orphans: Orphans | None = None
        """What former generations have left, where there were any."""
        self.committed = -1
        self._graph, self._world_sizes, self._unrepeated = graph, dict(world_sizes), unrepeated
        self._varying, self._barrier = varying, barrier
        for edge in graph.edges:
            self._begin(edge, resume)
        for op, out in self.outputs.items():
            if isinstance(out, VersionPort):
                out.mates = self.mates.get(op)

    def _begin(self, edge: Edge, resume: int) -> None:
        """This rank's ends of an edge, if it has any, where it goes on after step `resume`."""
        role, rank, graph = self.endpoint.site.role, self.endpoint.site.rank, self._graph
        src, dst = graph.ops[edge.src], graph.ops[edge.dst]
        if role not in (src.role, dst.role):
            return
        sizes = self._world_sizes
        way = route(edge.src_partition, sizes[src.role], edge.dst_partition, sizes[dst.role])
        hold = hold_of(edge, graph, self.activity, self._unrepeated)
        varies = self.log is not None and self._varies(src)
        if dst.role == role:
            make = PORTS[isinstance(edge.src_partition, Balanced), edge.newest]
            port = make(
                edge,
                src.role,
                way.sources(rank),
                way.combine,
                endpoint=self.endpoint,
                status_page=self.status_page,
                meter=self.meter,
                first=first_needed(edge, graph, self.activity, self._unrepeated, resume),
            )
            if isinstance(port, FirstPort):
                port.remember(self.log, rank, sizes[role])
            port.state.revocable = varies
            if isinstance(port, NewestPort):
                port.remember(self.log, hold - edge.lag, self.activity.periods[edge.dst] or Period())
            for value in edge.initial:
                begins = self.activity.first(edge)
                port.give({made: deepcopy(value) for made in range(-edge.lag, begins)}, begins - 1)
            self.inputs.setdefault(edge.dst, []).append((edge.param, port))
            if isinstance(edge.dst_partition, Balanced) and edge.dst not in self.mates:
                self.mates[edge.dst] = Mates(
                    edge, sizes[role], resume, endpoint=self.endpoint, status_page=self.status_page, meter=self.meter
                )
        if src.role == role:
            sends = [(send.selection, send.consumers) for send in way.sends(rank)]
            together = varies and self._barrier is not None  # then also those agree that send nothing
            if edge.src not in self.outputs and (sends or together):
                self.outputs[edge.src] = self._out_port(src.id) if varies else OutPort(self)
            if sends:
                way_out = OutEdge(self, edge, dst.role, sends, hold)
                if self.log is not None and varies and not self.log.sure:
                    way_out.made = resume
                self.outputs[edge.src].add(way_out)

    def _varies(self, op: OpCall) -> bool:
        """Whether a call may make something else the second time, and all who take it must have one version. Who takes
        items as they are finished may have others than who else does."""
        return op.role in self._varying and not any(edge.first for edge in self._graph.outputs(op.id))

    def _out_port(self, op: int) -> OutPort:
        if self._barrier is not None:
            return GroupPort(self, op, self._barrier, len(self._graph.ops))
        return VersionPort(self, op)

    def relayout(self, layout: Layout, changed: Collection[str]) -> tuple[int, ...]:
        """From the step of `layout` on, the roles `changed` have other ranks: begin again on the edges from and to
        them, which are returned. Where those ranks are is told afterwards."""
        ops, role = self._graph.ops, self.endpoint.site.role
        self.endpoint.forget(changed)
        self._world_sizes |= layout.sizes
        edges = [each for each in self._graph.edges if {ops[each.src].role, ops[each.dst].role} & {*changed}]
        edges = [each for each in edges if role in (ops[each.src].role, ops[each.dst].role)]
        gone = {each.id for each in edges}
        self.ways[:] = [way for way in self.ways if way.edge.id not in gone]
        for op, ports in self.inputs.items():
            self.inputs[op] = [(param, port) for param, port in ports if port.edge.id not in gone]
        for out in self.outputs.values():
            out.drop(gone)
        for edge in edges:
            self._begin(edge, layout.step)
        for port in self.ins:
            if port.edge.id in gone and isinstance(port, FirstPort):
                port.restored(layout.step, {})
        for way in self.ways:
            if way.edge.id in gone:
                way.open()
        return tuple(gone)

    @property
    def wired(self) -> bool:
        """Whether it is known where all ranks at the other ends are."""
        return all(port.wired for port in self.ins) and all(way.wired for way in self.ways)

    @property
    def ins(self) -> Iterator[InPort]:
        """The in-ports of all calls."""
        return (port for ports in self.inputs.values() for _, port in ports)

    @property
    def kept_bytes(self) -> int:
        """What is kept for consumers that might come back: slots as large as they are, the log, and small values."""
        kept = self.endpoint.pool.used_bytes
        for way in self.ways:
            kept += way.state.kept_bytes
        if self.log is not None:
            kept += self.log.nbytes
        return kept if self.orphans is None else kept + self.orphans.nbytes

    def waits_for_room(self, step: int) -> bool:
        """Whether a value of `step` must wait for a commit that frees some of `kept_bytes`, and that can come."""
        pool = self.endpoint.pool
        kept = self.kept_bytes
        if kept + pool.free_bytes > self.retention_bytes:
            pool.give_back(kept + pool.free_bytes - self.retention_bytes)
        return kept > self.retention_bytes and self.awaits_commit(step)

    def awaits_commit(self, step: int) -> bool:
        """Whether a commit that can come while the rank is at `step` would free something."""
        reachable = self.reachable(step)
        return (
            any(way.state.awaits_commit(reachable) for way in self.ways)
            or (self.log is not None and self.log.awaits_commit(reachable))
            or (self.orphans is not None and self.orphans.awaits_commit(reachable))
        )

    def reachable(self, step: int) -> int:
        """The newest commit that can come while the rank is at `step`: of a step after which it has a snapshot, as all
        others will have, whatever they wait for."""
        newest = self.status_page.fields[SNAPSHOT] + 1 if self.snapshots.enabled else step
        return self.snapshots.boundary(min(step, newest))

    def open(self, peers: Sequence[Peer] = ()) -> None:
        """Ask the producers among `peers`, and answer the consumers' asks."""
        for end in self._speakers:
            end.open()
        self.rewire(peers)

    def rewire(self, peers: Sequence[Peer]) -> None:
        """These are the peers now: the conversation with those of a new generation begins again."""
        self.endpoint.connect(peers)
        for end in self._speakers:
            end.rewire()
        for port in self.ins:
            port.ask()

    @property
    def _speakers(self) -> Sequence[OutEdge | Mates]:
        """Who answers others when there is a new one of them."""
        return (*self.ways, *self.mates.values())

    def commit(self, step: int) -> None:
        """`step` is committed: forget what was retained for it and before, and give back what has not been used."""
        self.committed = max(self.committed, step)
        for mates in self.mates.values():
            mates.committed(step)
        for way in self.ways:
            free(way.state.committed(step))
        at, now = self.status_page.fields[STEP], monotonic()
        self.endpoint.pool.trim(at, now)
        self.endpoint.reader.trim(at, now)

    def log_again(self, log: SendLog) -> None:
        """The files of what was sent are gone: write what is kept again. Raises `TransportError` for a value of which
        this process has no copy either."""
        self.endpoint.pool.forget_lost()
        log.begin_again()
        for payload in {id(kept.item): kept.item for way in self.ways for kept in way.state.kept}.values():
            if payload is not None:
                payload.log = -1
                payload.rescue()
        for out in self.outputs.values():
            out.write_again(log)
        for port in self.ins:
            if isinstance(port, FirstPort):
                port.log_again(log)

    def choose_again(self, choices: Mapping[tuple[int, int], int]) -> None:
        """What former generations took, by edge and step: how old it was. It is taken again, where it can be."""
        for port in self.ins:
            if isinstance(port, NewestPort):
                port.choose_again({step: age for (edge, step), age in choices.items() if edge == port.edge.id})

    def take_again(self, resume: int, records: Sequence[LogRecord]) -> None:
        """`records`: which items former generations took. The rank goes on after step `resume`."""
        for port in self.ins:
            if isinstance(port, FirstPort):
                port.restored(resume, {r.step: r.body for r in records if r.edge == port.edge.id})

    def end(self, step: int) -> None:
        """`step` was the last one: nothing that may still come is taken."""
        for port in self.ins:
            port.end(step)

    def pin(self, steps: Sequence[int]) -> None:
        """The snapshots of these steps are being persisted: what crosses them is kept."""
        for way in self.ways:
            free(way.state.pin(steps))

    def drain(self, last: int = ENDLESS) -> None:
        """Wait until all consumers have released what they take up to step `last`, so that slots may go.

        Raises `Stopping`.
        """
        self.endpoint.flush()
        while any(way.state.awaits_release(last - way.edge.lag) for way in self.ways):
            self.endpoint.wait()
