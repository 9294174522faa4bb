"""A rank's ends of its edges: the graph's routes compiled to the ports of each operator call."""

from __future__ import annotations

from collections.abc import Mapping

from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.routes import route
from rolemesh.graph.schedule import Activity
from rolemesh.rank.board import Board
from rolemesh.rank.endpoint import Endpoint
from rolemesh.rank.in_port import InPort
from rolemesh.rank.meter import Meter
from rolemesh.rank.out_port import OutPort, Way

__all__ = ["Ports"]


class Ports:
    """All ports of one rank. `inputs[op]` are a call's in-ports by parameter, `outputs[op]` its out-port, if any."""

    def __init__(
        self,
        graph: LogicalGraph,
        activity: Activity,
        world_sizes: Mapping[str, int],
        endpoint: Endpoint,
        board: Board,
        meter: Meter,
        *,
        steps: int,
        retention: bool = False,
        retention_bytes: int = 1 << 30,
    ) -> None:
        """`retention_bytes`: a put waits for a commit while more than this is kept for steps that are not committed."""
        self.endpoint, self.board, self.meter = endpoint, board, meter
        self.activity, self.steps = activity, steps
        self.retention, self.retention_bytes = retention, retention_bytes
        self.inputs: dict[int, list[tuple[str, InPort]]] = {}
        self.outputs: dict[int, OutPort] = {}
        self.ways: list[Way] = []
        role, rank = endpoint.site.role, endpoint.site.rank
        for edge in graph.edges:
            src, dst = graph.ops[edge.src], graph.ops[edge.dst]
            if role not in (src.role, dst.role):
                continue
            way = route(edge.src_partition, world_sizes[src.role], edge.dst_partition, world_sizes[dst.role])
            if dst.role == role:
                sources = way.sources[rank]
                port = InPort(edge, src.role, sources, way.combine, endpoint=endpoint, board=board, meter=meter)
                self.inputs.setdefault(edge.dst, []).append((edge.param, port))
            if src.role == role:
                sends = [(send.selection, send.consumers) for send in way.sends[rank]]
                if sends:
                    self.outputs.setdefault(edge.src, OutPort(self)).add(Way(self, edge, dst.role, sends))

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for consumers that might come back."""
        return sum(way.state.kept_bytes for way in self.ways)

    def commit(self, step: int) -> None:
        """`step` is committed: forget what was retained for it and before."""
        for way in self.ways:
            for payload in way.state.committed(step):
                payload.free()

    def replay(self, edge: int, consumer: int, from_step: int) -> None:
        """Send again what `consumer` of `edge`, started anew, needs from `from_step` on.

        Raises `TransportError` if it is not kept any more.
        """
        for way in self.ways:
            if way.edge.id == edge:
                for kept in way.state.rewind(consumer, from_step):
                    way.send(kept.item, kept.step, kept.chunk, kept.last, (consumer,))

    def drain(self) -> None:
        """Wait until all consumers have released everything, so that slots may go. Raises `Stopping`."""
        self.endpoint.flush()
        while any(way.state.under_way for way in self.ways):
            self.endpoint.wait()
