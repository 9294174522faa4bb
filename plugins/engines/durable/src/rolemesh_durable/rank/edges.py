"""A rank's ends of its edges: the graph's routes compiled to the ports of each operator call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Protocol

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.graph.schedule import Activity
from rolemesh.runs.meter import Meter
from rolemesh_durable.checkpoint.send_log import SendLog
from rolemesh_durable.protocol.edge import first_needed, hold_of
from rolemesh_durable.protocol.master_config import SnapshotPlan
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.in_port import InPort
from rolemesh_durable.rank.out_port import OutEdge, OutPort, free
from rolemesh_durable.rank.status_page import STEP, StatusPage

__all__ = ["Ports"]


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
        stateful: Collection[str] = (),
        resume: int = -1,
        log: SendLog | None = None,
    ) -> None:
        """`retention_bytes`: a put waits for a commit while what is kept for steps that are not committed takes more.

        The rank goes on after step `resume`; `log` gets what it sends. `stateful` are the roles that are restored from
        snapshots alone.
        """
        self.endpoint, self.status_page, self.meter = endpoint, status_page, meter
        self.activity, self.steps = activity, steps
        self.retention, self.retention_bytes = retention, retention_bytes
        self.snapshots, self.log = snapshots or SnapshotPlan(), log
        self.inputs: dict[int, list[tuple[str, InPort]]] = {}
        self.outputs: dict[int, OutPort] = {}
        self.ways: list[OutEdge] = []
        self.orphans: Orphans | None = None
        """What former generations have left, where there were any."""
        self.committed = -1
        role, rank = endpoint.site.role, endpoint.site.rank
        for edge in graph.edges:
            src, dst = graph.ops[edge.src], graph.ops[edge.dst]
            if role not in (src.role, dst.role):
                continue
            way = route(edge.src_partition, world_sizes[src.role], edge.dst_partition, world_sizes[dst.role])
            if dst.role == role:
                port = InPort(
                    edge,
                    src.role,
                    way.sources(rank),
                    way.combine,
                    endpoint=endpoint,
                    status_page=status_page,
                    meter=meter,
                    first=first_needed(edge, graph, activity, stateful, resume),
                )
                self.inputs.setdefault(edge.dst, []).append((edge.param, port))
            if src.role == role:
                sends = [(send.selection, send.consumers) for send in way.sends(rank)]
                if sends:
                    hold = hold_of(edge, graph, activity, stateful)
                    self.outputs.setdefault(edge.src, OutPort(self)).add(OutEdge(self, edge, dst.role, sends, hold))

    @property
    def kept_bytes(self) -> int:
        """What is kept for consumers that might come back: slots as large as they are, the log, and small values."""
        kept = sum(way.state.kept_bytes for way in self.ways) + self.endpoint.pool.used_bytes
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
        reachable = self.snapshots.boundary(step)
        return (
            any(way.state.awaits_commit(reachable) for way in self.ways)
            or (self.log is not None and self.log.awaits_commit(reachable))
            or (self.orphans is not None and self.orphans.awaits_commit(reachable))
        )

    def open(self, peers: Sequence[Peer] = ()) -> None:
        """Ask the producers among `peers`, and answer the consumers' asks."""
        for way in self.ways:
            way.open()
        self.rewire(peers)

    def rewire(self, peers: Sequence[Peer]) -> None:
        """These are the peers now: the conversation with those of a new generation begins again."""
        self.endpoint.connect(peers)
        for way in self.ways:
            way.rewire()
        for ports in self.inputs.values():
            for _, port in ports:
                port.ask()

    def commit(self, step: int) -> None:
        """`step` is committed: forget what was retained for it and before, and give back what has not been used."""
        self.committed = max(self.committed, step)
        for way in self.ways:
            free(way.state.committed(step))
        at, now = self.status_page.fields[STEP], monotonic()
        self.endpoint.pool.trim(at, now)
        self.endpoint.reader.trim(at, now)

    def log_again(self, log: SendLog) -> None:
        """The files of what was sent are gone: write what is kept again. Raises `TransportError` for a value of which
        this process has no copy either."""
        pool = self.endpoint.pool
        pool.forget_lost()
        log.begin_again()
        for payload in {id(kept.item): kept.item for way in self.ways for kept in way.state.kept}.values():
            if payload is not None:
                payload.log = -1
                if payload.slot is not None:
                    payload.slot = pool.rescue(payload.slot)
        for way in self.ways:
            way.log_again(log)

    def pin(self, steps: Sequence[int]) -> None:
        """The snapshots of these steps are being persisted: what crosses them is kept."""
        for way in self.ways:
            free(way.state.pin(steps))

    def drain(self) -> None:
        """Wait until all consumers have released everything, so that slots may go. Raises `Stopping`."""
        self.endpoint.flush()
        while any(way.state.under_way for way in self.ways):
            self.endpoint.wait()
