"""The producer's end of a call's edges in a rank: waits for credits, encodes once, sends, retains."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from time import monotonic_ns
from typing import Any, Protocol

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Part, Selection, Whole
from rolemesh.graph.schedule import Activity
from rolemesh.graph.values import check_returned, join_chunks, select
from rolemesh_durable.checkpoint.send_log import LogRecord, SendLog
from rolemesh_durable.dataplane.transport import DATA, END, HEAD, Payload
from rolemesh_durable.protocol.edge import LogLost, OutEdgeState
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.status_page import BLOCKED, EDGE, PHASE, SINCE_NS, StatusPage

__all__ = ["INLINE_BYTES", "OutEdge", "OutPort", "Rank"]

FOREVER = 1 << 62
BUDGET = 8 << 20
"""Bytes that a rank may have under way on an edge whose credits nobody has named; two values, if they are larger."""
INLINE_BYTES = 32 * 1024
"""Values up to this size travel in their frame; larger ones in a shared-memory slot (or in frames of their own)."""


class Rank(Protocol):
    """What an out-port shares with the rank's others (`rolemesh_durable.rank.edges.Ports`)."""

    endpoint: Endpoint
    status_page: StatusPage
    meter: Meter
    activity: Activity
    steps: int
    retention: bool
    log: SendLog | None
    ways: list[OutEdge]

    def waits_for_room(self, step: int) -> bool:
        """Whether a value of `step` must wait for a commit that frees what is kept."""


class OutEdge:
    """One edge out of an operator call, as this producer rank sees it."""

    __slots__ = (
        "_endpoint",
        "_generation",
        "_id",
        "_log",
        "_pending",
        "_rank",
        "_rank_ports",
        "_role",
        "_sender",
        "always",
        "beyond",
        "edge",
        "made",
        "on",
        "sends",
        "state",
    )

    def __init__(
        self, ports: Rank, edge: Edge, role: str, sends: list[tuple[Selection, tuple[int, ...]]], hold: int
    ) -> None:
        self.edge, self.sends = edge, sends
        self._id, self._role, self._endpoint, self._sender = edge.id, role, ports.endpoint, ports.endpoint.sender
        self._rank, self._generation = ports.endpoint.site.rank, ports.endpoint.site.generation
        consumers = [consumer for _, group in sends for consumer in group]
        self.state: OutEdgeState[Payload] = OutEdgeState(
            consumers, edge.window, retain=ports.retention, hold=hold, budget=BUDGET if edge.credits is None else 0
        )
        self._log, self._rank_ports = ports.log, ports
        self._pending: dict[int, tuple[int, int, int]] = {}
        self.made: int | None = None
        """Of a rank whose former generations may have sent what is in no log: the newest step that is not made again.
        What consumers have used beyond it they have to give back (`LogLost`)."""
        self.always = self.on = edge.lag == 0 and ports.activity.always(edge.dst)
        self.beyond = False
        ports.ways.append(self)

    def put(self, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Log and keep a chunk (None: the mark that no more come), then send it to those who listen."""
        if self.state.unheard and not self.beyond:
            self._endpoint.pump()
        if self._log is not None:
            self.write(self._log, payload, step, chunk, last, consumers)
        self.show(payload, step, chunk, last, consumers)

    def show(self, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Keep a chunk that is in the log, and send it to those who listen.

        What would be taken after the job's last step is only logged: a longer job that resumes from that one takes it.
        """
        if self.beyond:
            if payload is not None:
                payload.users += 1
            return
        now = self.keep(payload, step, chunk, last, consumers)
        if now:
            self.send(payload, step, chunk, last, now)

    def keep(
        self, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Keep what is in the log already; who listens now is returned."""
        if payload is None:
            return self.state.sent(step, chunk, last, consumers, None, 0)
        payload.users += 1
        return self.state.sent(step, chunk, last, consumers, payload, len(payload.body), payload.nbytes)

    def write(
        self, log: SendLog, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> None:
        """Log a chunk that is about to be sent."""
        if payload is None:
            log.end(self._id, step, chunk, self.state.hold, consumers)
            return
        body, hlen, count = payload.body, payload.hlen, len(payload.sizes)
        first, place = payload.log, payload.place
        at = log.chunk(
            self._id, step, chunk, last, self.state.hold, consumers, body, hlen, count, payload=first, place=place
        )
        if first < 0:
            payload.log = at

    def send(self, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Send a chunk (None: the mark that no more come) to `consumers`."""
        stamp = (last, self._id, self._rank, self._generation, step, chunk)
        if payload is not None and payload.slots:
            for consumer in consumers:
                self._sender(self._role, consumer).send_payload(payload, stamp)
            return
        frame = HEAD.pack(DATA, END, *stamp, 0, 0) if payload is None else payload.frame(stamp)
        for consumer in consumers:
            self._sender(self._role, consumer).send(frame)

    def open(self) -> None:
        """Answer asks from now on, those that have come already among them."""
        self._endpoint.register_producer(self._id, self)

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """A consumer has released everything up to `step`. One that is none was so in an earlier layout."""
        if not self.state.feeds(consumer):
            return
        waiting = self._pending.get(consumer)
        if waiting is not None and waiting[0] == generation:
            self._pending[consumer] = (generation, waiting[1], max(waiting[2], step))
            return
        free(self.state.acked(consumer, generation, step))

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """A consumer lacks everything from `from_step` on: send what is kept of it, then what comes, as it comes.

        An ask of a generation whose address is not known yet waits for it.
        """
        if not self.state.feeds(consumer):
            return
        if generation > self._endpoint.generation(self._role, consumer):
            self._pending[consumer] = (generation, from_step, released)
            return
        if self.made is not None:
            self._check_used(consumer, from_step)
        for kept in self.state.ask(consumer, generation, from_step, released):
            self.send(kept.item, kept.step, kept.chunk, kept.last, (consumer,))

    @property
    def wired(self) -> bool:
        """Whether it is known where all consumers are."""
        return all(self._endpoint.generation(self._role, each) >= 0 for _, group in self.sends for each in group)

    def _check_used(self, consumer: int, from_step: int) -> None:
        assert self.made is not None
        consumed, steps = self._rank_ports.activity.consumed, self._rank_ports.steps
        for step in range(self.made + 1, from_step):
            if consumed(self.edge, step, steps):
                self._endpoint.lost = LogLost(
                    f"{self._role}/{consumer} has used what was made at step {step}, which is in no log any more, and "
                    "would be made again: it need not come to the same",
                    where=f"the value for {self.edge.param!r}",
                    remedy="a failover level that takes every rank back to the disk (job)",
                )
                raise self._endpoint.lost

    def void(self, step: int) -> None:
        """What former generations have made at `step` and after does not count. Raises `LogLost` if it was used."""
        self.made = step - 1
        for consumer, from_step in self.state.ahead:
            self._check_used(consumer, from_step)

    def rewire(self) -> None:
        """Addresses have changed: consumers of a new generation get nothing before they ask."""
        for group in self.sends:
            for consumer in group[1]:
                self.state.restarted(consumer, self._endpoint.generation(self._role, consumer))
        pending, self._pending = self._pending, {}
        for consumer, ask in pending.items():
            self.asked(consumer, *ask)


def free(payloads: Iterable[Payload]) -> None:
    """Nobody needs these any more."""
    for payload in payloads:
        payload.free()


class OutPort:
    """What one operator call returns, on its way to all its consumers: encoded once per distinct part."""

    def __init__(self, ports: Rank) -> None:
        self._ports, self._endpoint = ports, ports.endpoint
        self._ways: list[OutEdge] = []
        self._groups: dict[Selection, list[tuple[OutEdge, tuple[int, ...]]]] = {}
        self.admitted = -1
        """The step whose value waits for nothing."""

    def add(self, way: OutEdge) -> None:
        """One more edge that starts here."""
        self._ways.append(way)
        for selection, consumers in way.sends:
            self._groups.setdefault(selection, []).append((way, consumers))

    def drop(self, edges: Collection[int]) -> None:
        """These edges are none of its any more: nobody asks for what is kept for them."""
        for way in self._ways:
            if way.edge.id in edges:
                free(way.state.clear())
        ways = [way for way in self._ways if way.edge.id not in edges]
        self._ways, self._groups = [], {}
        for way in ways:
            self.add(way)

    def take_over(self, way: OutEdge, payload: Payload | None, record: LogRecord, *, again: bool) -> None:
        """A former generation has sent this; `again`: after the step that this one goes on from."""
        way.keep(payload, record.step, record.chunk, record.last, record.consumers)

    def write_again(self, log: SendLog) -> None:
        """Write what is kept to a log that has been begun again."""
        kept = sorted(((way, each) for way in self._ways for each in way.state.kept), key=lambda pair: pair[1].step)
        for step, made in groupby(kept, key=lambda pair: pair[1].step):
            first = log.position
            for way, each in made:
                way.write(log, each.item, step, each.chunk, each.last, each.consumers)
            self._wrote_again(log, step, first)

    def _wrote_again(self, log: SendLog, step: int, first: int) -> None:
        """What was made at `step` is in the log from position `first` on."""

    def await_credits(self, step: int) -> None:
        """Wait now for what `put` or `put_chunks` would wait for at `step`: they will not."""
        self._begin(step)
        self.admitted = step

    def put(self, step: int, value: Any) -> None:
        """Send what was returned at `step`; waits for credits. Nothing happens if nobody will take it."""
        if self._begin(step):
            check_returned((value,))
            for selection in self._groups:
                self._send(selection, step, 0, True, value)
        self._finish(step)

    def put_chunks(self, step: int, chunks: Iterable[Any], *, maybe_none: bool = False) -> None:
        """Send what is yielded at `step`, each chunk at once. Parts of rows are cut from the whole, so sent at the end.

        Raises `ValueError` if nothing is yielded, unless there is `maybe_none`: then that is told.
        """
        count, live = 0, False
        kept: list[Any] = []
        keep = any(isinstance(selection, Part) for selection in self._groups)
        for value in chunks:
            live = self._begin(step) if count == 0 else live
            if live:
                check_returned((value,))
                for selection in self._groups:
                    if not isinstance(selection, Part):
                        self._send(selection, step, count, False, value)
                if keep:
                    kept.append(value)
            count += 1
        if not count and maybe_none:
            live = self._begin(step)
        elif not count:
            raise ValueError("it yielded nothing; yield at least one chunk, empty if there are no rows")
        for selection in self._groups if live else ():
            if isinstance(selection, Part):
                self._send(selection, step, 0, True, join_chunks(kept))
            else:
                self._end(selection, step, count)
        self._finish(step)

    def _finish(self, step: int) -> None:
        """All that the call has made at `step` has been put."""

    def _put(
        self, way: OutEdge, payload: Payload | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> None:
        way.put(payload, step, chunk, last, consumers)

    def _begin(self, step: int) -> bool:
        """Wait for the credits of all edges that want the value of `step`; whether there are any."""
        live = False
        ports = self._ports
        for way in self._ways:
            if not way.always:
                way.on = ports.activity.consumed(way.edge, step, ports.steps)
                way.beyond = not way.on and ports.log is not None and ports.activity.consumed(way.edge, step, FOREVER)
            if way.beyond:
                way.on = live = True
            elif way.on:
                live = True
                if not way.state.credit and step != self.admitted:
                    self._wait_credit(way, step)
        if live and ports.retention and step != self.admitted and ports.waits_for_room(step):
            self._wait_commit(step)
        return live

    def _send(self, selection: Selection, step: int, chunk: int, last: bool, value: Any) -> None:
        payload: Payload | None = None
        for way, consumers in self._groups[selection]:
            if not way.on:
                continue
            if payload is None:
                part = value if type(selection) is Whole else select(value, selection)
                payload = Payload(part, self._endpoint.pool, INLINE_BYTES, self._endpoint.reader)
            self._put(way, payload, step, chunk, last, consumers)

    def _end(self, selection: Selection, step: int, chunk: int) -> None:
        for way, consumers in self._groups[selection]:
            if way.on:
                self._put(way, None, step, chunk, True, consumers)

    def _wait_credit(self, way: OutEdge, step: int) -> None:
        began = self._begin_wait(way.edge.id)
        while not way.state.admits(step):
            self._ports.endpoint.wait()
        self._end_wait(began)

    def _wait_commit(self, step: int) -> None:
        ports = self._ports
        began = self._begin_wait(-1)
        while ports.waits_for_room(step):
            ports.endpoint.wait()
        self._end_wait(began)

    def _begin_wait(self, edge: int) -> int:
        fields, now = self._ports.status_page.fields, monotonic_ns()
        fields[PHASE], fields[EDGE], fields[SINCE_NS] = BLOCKED, edge, now
        return now

    def _end_wait(self, began: int) -> None:
        ports, took = self._ports, monotonic_ns() - began
        ports.meter.blocked += took
        ports.status_page.waited(ports.status_page.fields[EDGE], took)
