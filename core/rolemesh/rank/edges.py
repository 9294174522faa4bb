"""A rank's ends of its edges: routes compiled to ports that take inputs, put outputs and return credits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic_ns
from typing import Any

from rolemesh.graph.logical import Edge, LogicalGraph
from rolemesh.graph.routes import Concat, Part, Selection, Take, Whole, route
from rolemesh.graph.schedule import Activity
from rolemesh.graph.values import combine, select
from rolemesh.protocol.edge import InEdgeState, OutEdgeState
from rolemesh.rank.board import BLOCKED, WAITING, Board
from rolemesh.rank.chunks import join_chunks
from rolemesh.rank.endpoint import Arrived, Endpoint
from rolemesh.rank.meter import Meter
from rolemesh.transport import CREDIT, CREDITS, DATA, END, HEAD, Payload

__all__ = ["INLINE_BYTES", "InPort", "OutPort", "Ports"]

INLINE_BYTES = 32 * 1024
"""Values up to this size travel in their frame; larger ones in a shared-memory slot (or in frames of their own)."""


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
                port = InPort(self, edge, src.role, way.sources[rank], way.combine)
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


class InPort:
    """One input of an operator call."""

    def __init__(self, ports: Ports, edge: Edge, role: str, sources: Sequence[int], how: Any) -> None:
        self.edge = edge
        self.state: InEdgeState[Arrived] = InEdgeState(sources)
        self._accept = self.state.accept
        self._endpoint, self._board, self._meter = ports.endpoint, ports.board, ports.meter
        self._lag = edge.lag
        self._how = how
        self._single = len(sources) == 1 and isinstance(how, (Take, Concat))
        self._peers = [(role, source) for source in sources]
        self._batch = max(1, edge.window // 2)
        self._released = -1
        self._pending = 0
        self._put_off = False
        ports.endpoint.register_taker(edge.id, self)

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Arrived | None) -> None:
        """Take a chunk. What came before is acknowledged again: its producer may have started again."""
        if not self._accept(source, generation, step, chunk, last, item) and step <= self._released:
            self._owe()

    def take(self, step: int) -> Any:
        """The whole value for `step`; waits for it."""
        made = step - self._lag
        state = self.state
        if not state.ready(made):
            self._wait_ready(made)
        chunks = state.take(made)
        if self._single and len(chunks[0]) == 1:
            return chunks[0][0].value()
        return combine([join_chunks([chunk.value() for chunk in part]) for part in chunks], self._how)

    def stream(self, step: int) -> Iterator[Any]:
        """The chunks for `step` as they come: chunk 0 of all producers in rank order, then chunk 1, and so on.

        Where parts only make sense together (sums, shards), the producers' chunks of one number are combined.
        """
        made, index = step - self._lag, 0
        apart = isinstance(self._how, Take) or (isinstance(self._how, Concat) and self._how.axis == 0)
        positions = range(len(self.state.sources))
        while True:
            found: list[Any] = []
            for position in positions:
                item = self._wait_chunk(made, position, index)
                if item is None:
                    continue
                if apart:
                    yield item.value()
                found.append(item)
            if not found:
                return
            if not apart:
                if len(found) != len(positions):
                    raise ValueError(f"producers of {self.edge.param!r} yield different numbers of chunks")
                yield combine([item.value() for item in found], self._how)
            index += 1

    def release(self, step: int) -> None:
        """The operator has ended: its credit goes back, now or with the next ones."""
        self._released = step - self._lag
        self._owe()

    def _owe(self) -> None:
        self._pending += 1
        if self._pending >= self._batch:
            self.flush()
        elif not self._put_off:
            self._put_off = True
            self._endpoint.put_off(self)

    def release_stream(self, step: int) -> None:
        """As `release`, for a value that was streamed: what the operator left is skipped."""
        made = step - self._lag
        if not self.state.ready(made):
            self._wait_ready(made)
        self.state.take(made)
        self.release(step)

    def flush(self) -> None:
        """Tell the producers up to which step everything has been released."""
        self._put_off = False
        if self._pending:
            self._pending = 0
            site = self._endpoint.site
            frame = CREDITS.pack(CREDIT, self.edge.id, site.rank, site.generation, self._released)
            for role, rank in self._peers:
                self._endpoint.sender(role, rank).send(frame)

    def _wait_ready(self, made: int) -> None:
        before, began = self._begin_wait()
        endpoint, ready = self._endpoint, self.state.ready
        while not ready(made):
            endpoint.wait()
        self._end_wait(before, began)

    def _wait_chunk(self, made: int, position: int, index: int) -> Arrived | None:
        state = self.state
        item = state.chunk(made, position, index)
        if item is not None or state.ended(made, position):
            return item
        before, began = self._begin_wait()
        while (item := state.chunk(made, position, index)) is None and not state.ended(made, position):
            self._endpoint.wait()
        self._end_wait(before, began)
        return item

    def _begin_wait(self) -> tuple[int, int]:
        fields, now = self._board.fields, monotonic_ns()
        before = fields[5]
        fields[5], fields[6], fields[7] = WAITING, self.edge.id, now
        return before, now

    def _end_wait(self, before: int, began: int) -> None:
        fields, now = self._board.fields, monotonic_ns()
        self._meter.waiting += now - began
        fields[5], fields[6], fields[7] = before, -1, now


class Way:
    """One edge out of an operator call, as this producer rank sees it."""

    __slots__ = ("_generation", "_id", "_rank", "_role", "_sender", "always", "edge", "on", "sends", "state")

    def __init__(self, ports: Ports, edge: Edge, role: str, sends: list[tuple[Selection, tuple[int, ...]]]) -> None:
        self.edge, self.sends = edge, sends
        self._id, self._role, self._sender = edge.id, role, ports.endpoint.sender
        self._rank, self._generation = ports.endpoint.site.rank, ports.endpoint.site.generation
        consumers = [consumer for _, group in sends for consumer in group]
        self.state: OutEdgeState[Payload] = OutEdgeState(consumers, edge.window, retain=ports.retention)
        self.on = False
        self.always = edge.lag == 0 and ports.activity.always(edge.dst)
        ports.endpoint.register_giver(edge.id, self)
        ports.ways.append(self)

    def send(self, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Send a chunk (None: the mark that no more come) to `consumers`."""
        stamp = (last, self._id, self._rank, self._generation, step, chunk)
        if payload is not None and payload.slot is not None:
            for consumer in consumers:
                self._sender(self._role, consumer).send_payload(payload, stamp)
            return
        frame = HEAD.pack(DATA, END, *stamp, 0, 0, 0) if payload is None else payload.frame(stamp)
        for consumer in consumers:
            self._sender(self._role, consumer).send(frame)

    def acked(self, consumer: int, step: int) -> None:
        """A consumer has released everything up to `step`."""
        for payload in self.state.acked(consumer, step):
            payload.free()


class OutPort:
    """What one operator call returns, on its way to all its consumers: encoded once per distinct part."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._pool = ports, ports.endpoint.pool
        self._ways: list[Way] = []
        self._groups: dict[Selection, list[tuple[Way, tuple[int, ...]]]] = {}

    def add(self, way: Way) -> None:
        """One more edge that starts here."""
        self._ways.append(way)
        for selection, consumers in way.sends:
            self._groups.setdefault(selection, []).append((way, consumers))

    def put(self, step: int, value: Any) -> None:
        """Send what was returned at `step`; waits for credits. Nothing happens if nobody will take it."""
        if self._begin(step):
            for selection in self._groups:
                self._send(selection, step, 0, True, value)

    def put_chunks(self, step: int, chunks: Iterable[Any]) -> None:
        """Send what is yielded at `step`, each chunk at once. Parts of rows are cut from the whole, so sent at the end.

        Raises `ValueError` if nothing is yielded.
        """
        count, live = 0, False
        kept: list[Any] = []
        keep = any(isinstance(selection, Part) for selection in self._groups)
        for value in chunks:
            live = self._begin(step) if count == 0 else live
            if live:
                for selection in self._groups:
                    if not isinstance(selection, Part):
                        self._send(selection, step, count, False, value)
                if keep:
                    kept.append(value)
            count += 1
        if not count:
            raise ValueError("a generator operator must yield at least one chunk")
        for selection in self._groups if live else ():
            if isinstance(selection, Part):
                self._send(selection, step, 0, True, join_chunks(kept))
            else:
                self._end(selection, step, count)

    def _begin(self, step: int) -> bool:
        """Wait for the credits of all edges that want the value of `step`; whether there are any."""
        live = False
        ports = self._ports
        for way in self._ways:
            way.on = way.always or ports.activity.consumed(way.edge, step, ports.steps)
            if way.on:
                live = True
                if not way.state.credit:
                    self._wait_credit(way)
        if live and ports.retention and ports.kept_bytes > ports.retention_bytes:
            self._wait_commit(step)
        return live

    def _send(self, selection: Selection, step: int, chunk: int, last: bool, value: Any) -> None:
        payload: Payload | None = None
        for way, consumers in self._groups[selection]:
            if not way.on:
                continue
            if payload is None:
                part = value if type(selection) is Whole else select(value, selection)
                payload = Payload(part, self._pool, INLINE_BYTES)
            payload.users += 1
            way.state.sent(step, chunk, last, consumers, payload, payload.nbytes)
            way.send(payload, step, chunk, last, consumers)

    def _end(self, selection: Selection, step: int, chunk: int) -> None:
        for way, consumers in self._groups[selection]:
            if way.on:
                way.state.sent(step, chunk, True, consumers, None, 0)
                way.send(None, step, chunk, True, consumers)

    def _wait_credit(self, way: Way) -> None:
        began = self._begin_wait(way.edge.id)
        while not way.state.credit:
            self._ports.endpoint.wait()
        self._end_wait(began)

    def _wait_commit(self, step: int) -> None:
        ports = self._ports
        began = self._begin_wait(-1)
        while ports.kept_bytes > ports.retention_bytes and any(w.state.awaits_commit(step) for w in ports.ways):
            ports.endpoint.wait()
        self._end_wait(began)

    def _begin_wait(self, edge: int) -> int:
        fields, now = self._ports.board.fields, monotonic_ns()
        fields[5], fields[6], fields[7] = BLOCKED, edge, now
        return now

    def _end_wait(self, began: int) -> None:
        self._ports.meter.blocked += monotonic_ns() - began
