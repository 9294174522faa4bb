"""The effects of `protocol.rank` for a simulated rank, without sockets, shared memory and clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.memory import Decision, Entry
from tests.simulation.model import Value, chunks_of, gather, part_of
from tests.simulation.sharing import assembled

from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Combine, Selection, Share, Whole
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.delivery.first import decode_taken
from rolemesh_durable.protocol.delivery.newest import age_in
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.rank.effects import Consumer, Effects, Flushed, GroupEnd, Producer, Reader, Waits
from rolemesh_durable.protocol.rank.out_edge import OutEdge
from rolemesh_durable.protocol.rank.page import FIELDS, IDLE
from rolemesh_durable.rank.channel import Receive, Send
from rolemesh_runtime import items

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["Chunk", "SimItem", "SimLog", "SimMail", "SimPage", "Streamed", "effects_of"]

LOOK_S = 0.02
"""Seconds between two looks at what no message announces."""


class Chunk(NamedTuple):
    """Chunk number `number` of what an operator makes."""

    whole: Value
    number: int


class Streamed(NamedTuple):
    """A chunk that a streaming operator takes."""

    source: int
    chunk: int
    value: Value


class SimItem:
    """A chunk as it is sent."""

    def __init__(self, value: Any) -> None:
        self.value, self.users, self.body, self.nbytes = value, 0, b"1", 1

    def free(self) -> None:
        """Nothing is to be freed."""

    def rescue(self) -> None:
        """Nobody removes it."""


class Arrival:
    """A chunk as it has come."""

    small = True

    def __init__(self, item: Any, streams: bool, source: int, chunk: int) -> None:
        self.item, self._streams, self._source, self._chunk = item, streams, source, chunk

    def value(self) -> Any:
        """As an operator that streams takes it, or one that takes items."""
        return Streamed(self._source, self._chunk, self.item) if self._streams else self.item


class SimPage:
    """The status page."""

    def __init__(self) -> None:
        self.fields = [0] * FIELDS
        for at, value in enumerate((0, 0, -1, -1, -1, IDLE, -1, 0, -1)):
            self.fields[at] = value

    def waited(self, edge: int, ns: int) -> None:
        """Nobody asks."""


class SimMail:
    """The ways to other ranks."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank
        role, number = rank.key
        self.site = Site(role, number, rank.agent.node, rank.generation, "", "", "")
        self.consumers: dict[int, Consumer] = {}
        self.producers: dict[int, Producer] = {}
        self.channels: dict[str, Receive] = {}
        self.group: GroupEnd | None = None
        self.peers: dict[tuple[str, int], m.Peer] = {}
        self._early: list[tuple[Any, ...]] = []
        self._put_off: list[Flushed] = []

    def generation(self, role: str, rank: int) -> int:
        """Return the newest known generation of a peer."""
        if (role, rank) == self._rank.key:
            return self._rank.generation
        peer = self.peers.get((role, rank))
        return peer.generation if peer is not None else -1

    def connect(self, peers: Sequence[m.Peer]) -> None:
        """Addresses have changed."""
        for peer in peers:
            known = self.peers.get(peer.ref)
            if known is None or known.generation < peer.generation:
                self.peers[peer.ref] = peer

    def forget(self, roles: Collection[str]) -> None:
        """The ranks of these roles are gone."""
        self.peers = {key: peer for key, peer in self.peers.items() if key[0] not in roles}

    def consume(self, edge: int, end: Consumer) -> None:
        """`end` takes the chunks of an edge."""
        self.consumers[edge] = end
        self._again()

    def produce(self, edge: int, end: Producer) -> None:
        """`end` takes the asks and acknowledgements of an edge."""
        self.producers[edge] = end
        if isinstance(end, OutEdge):
            self._watch(end)
        self._again()

    def open_channel(self, name: str, receive: Receive) -> Send:
        """As `rolemesh_durable.rank.channel.Channels.open`."""
        self.channels[name] = receive
        self._again()
        return lambda role, rank, body: self._send((role, rank), "channel", self.site.role, name, body)

    def gather(self, end: GroupEnd) -> None:
        """`end` takes what the group says."""
        self.group = end
        self._again()

    def data(
        self, item: SimItem | None, role: str, consumers: Sequence[int], edge: int, step: int, chunk: int, last: bool
    ) -> None:
        """Send a chunk."""
        value = item.value if item is not None else None
        for consumer in consumers:
            self._send((role, consumer), "data", edge, step, chunk, last, value)

    def ask(self, role: str, rank: int, edge: int, from_step: int, released: int) -> None:
        """Ask a producer."""
        self._send((role, rank), "ask", edge, from_step, released)

    def release(self, role: str, rank: int, edge: int, step: int) -> None:
        """Acknowledge."""
        self._send((role, rank), "ack", edge, step)

    def tell_group(self, rank: int, kind: int, position: int, vote: int = 0) -> None:
        """Tell a rank of the group."""
        self._send((self.site.role, rank), "gather", kind, position, vote)

    def put_off(self, end: Flushed) -> None:
        """Flush `end` before the rank waits."""
        self._put_off.append(end)

    def flush(self) -> None:
        """Flush all that was put off."""
        put_off, self._put_off = self._put_off, []
        for end in put_off:
            end.flush()

    def pump(self) -> None:
        """Handle what has come."""
        self._rank.handle_all()

    def lose(self, lost: LogLost) -> None:
        """The rank ends: the handler of the frame fails with it."""

    def take(self, frame: tuple[Any, ...]) -> bool:
        """Hand a frame on; False if it is none of these. A frame without an end waits."""
        match frame:
            case ("data", source, generation, edge, step, chunk, last, item) if edge in self.consumers:
                streams = self._rank.job.graph.ops[self._rank.job.graph.edges[edge].dst].streaming
                arrival = Arrival(item, streams, source, chunk) if item is not None else None
                self.consumers[edge].arrived(source, generation, step, chunk, last, arrival)
            case ("ask", consumer, generation, edge, from_step, released) if edge in self.producers:
                self.producers[edge].asked(consumer, generation, from_step, released)
            case ("ack", consumer, generation, edge, step) if edge in self.producers:
                self.producers[edge].acked(consumer, generation, step)
            case ("channel", rank, generation, role, name, body) if name in self.channels:
                self.channels[name](role, rank, generation, body)
            case ("gather", rank, generation, kind, position, vote) if self.group is not None:
                self.group.message(rank, generation, kind, position, vote)
            case (("data" | "ask" | "ack" | "channel" | "gather"), *_):
                self._early.append(frame)
            case _:
                return False
        return True

    def _again(self) -> None:
        early, self._early = self._early, []
        for frame in early:
            self.take(frame)

    def _send(self, key: tuple[str, int], kind: str, *rest: Any) -> None:
        frame = kind, self.site.rank, self.site.generation, *rest
        if key == self._rank.key:
            self.take(frame)
        else:
            self._rank.send_to(key, frame)

    def _watch(self, end: OutEdge[SimItem]) -> None:
        ask, rank = end.state.ask, self._rank

        def asked(consumer: int, generation: int, from_step: int, released: int) -> Any:
            kept = ask(consumer, generation, from_step, released)
            rank.world.checks.answered(rank, end, consumer, generation, from_step, kept)
            return kept

        end.state.ask = asked  # type: ignore[method-assign]


class SimWaits(Waits):
    """How the main thread waits; what is owed is settled meanwhile."""

    def __init__(self, rank: SimRank) -> None:
        super().__init__(rank.page.fields, lambda: rank.clock_ns)
        self._rank = rank

    def until(
        self, ready: Callable[[], object], phase: int, edge: int = -1, *, look_s: float = 0.0, deadline: int = 0
    ) -> bool:
        """Return True once `ready()` is true, or False at `deadline`."""
        if ready():
            return True
        rank, stay, come = self._rank, self.enter(phase, edge), False
        if look_s or deadline:
            while not ready():
                if 0 < deadline <= rank.clock_ns:
                    break
                rank.sleep(LOOK_S)
                rank.hear()
            else:
                come = True
            self.leave(stay)
            return come

        def has_come() -> bool:
            nonlocal come
            come = come or bool(ready())  # which may choose, so it is not asked after that
            return come

        def news(told: int) -> bool:
            return has_come() or rank.taking > told

        while not come:
            rank.settle()
            rank.until(partial(news, rank.taking))
        self.leave(stay)
        return True

    @property
    def stopping(self) -> bool:
        """Whether the agent has said stop."""
        return self._rank.stopping

    def look(self) -> None:
        """Handle what has come."""
        self._rank.hear()


class SimLog:
    """The log of what a rank has sent, in the memory of its node."""

    nbytes = 0

    def __init__(self, rank: SimRank) -> None:
        self._rank, self._memory = rank, rank.agent.memory
        before = self._memory.sure.get(rank.key, -1)
        self.sure = not rank.generation or before >= rank.generation - 1
        if self.sure:
            self._memory.sure[rank.key] = rank.generation
        self._new: list[Entry] = []
        self.position = 0

    def chunk_of(
        self, item: SimItem | None, edge: int, step: int, chunk: int, last: bool, hold: int, consumers: tuple[int, ...]
    ) -> None:
        """Append a chunk. That takes some time, in which the rank may die."""
        rank = self._rank
        if rank.world.chance(0.4):
            rank.sleep(rank.world.between(0.0, 0.002))
        rank.world.checks.owns(rank)
        entry = Entry(edge, step, chunk, last, consumers, item.value if item is not None else None, hold)
        self._memory.logs[rank.key].append(entry)
        self._new.append(entry)
        self.position += 1

    def whole(self, call: int, step: int, first: int, hold: int, items: bytes = b"") -> None:
        """Close a call: the entries since position `first` are all of it, and replace earlier entries of it."""
        rank, memory = self._rank, self._memory
        if rank.world.chance(0.4):
            rank.sleep(rank.world.between(0.0, rank.world.scenario.pace))  # large parts take their time
        rank.world.checks.owns(rank)
        made = self._new[len(self._new) - (self.position - first) :]
        edges = {edge.id for edge in rank.job.outputs[call]}
        others = [e for e in memory.logs[rank.key] if e.step != step or e.edge not in edges]
        memory.logs[rank.key] = others + made
        memory.say_whole(rank.key, edges, step, rank.generation)
        if items:
            memory.items.setdefault(rank.key, {})[call, step] = items
        self.sure, memory.sure[rank.key] = True, rank.generation
        self._new = []

    def decide(self, scope: str, step: int, hold: int, body: bytes, *, persists: bool = False) -> None:
        """Append a decision."""
        rank = self._rank
        edge = rank.job.graph.edges[int(scope.partition("/")[2])]
        if scope == f"newest/{edge.id}":
            rank.world.checks.chose(rank, edge, step, step - age_in(body))
        else:
            rank.world.checks.took(rank, edge, step, decode_taken(body).took)
        self._memory.decisions.setdefault(rank.key, {})[scope, step] = Decision(scope, step, hold, body)
        if persists:
            self._memory.logs[rank.key].append(Entry(-1, step, 0, True, (), body, hold, scope))

    def awaits_commit(self, step: int) -> bool:
        """It takes no room."""
        return False


class SimMemory:
    """Shared memory without an end."""

    used_bytes = 0

    def within(self, kept: int, most: int) -> None:
        """Nothing is free."""

    def trim(self, step: int) -> None:
        """Nothing is free."""

    def forget_lost(self) -> None:
        """Nobody removes it."""


class SimValues:
    """Values are hashes."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    def encode(self, value: Any, selection: Selection) -> SimItem:
        """The part of a value, of a chunk of one, or of an item. Memory may be short: the rank does its idle work."""
        self._rank.settle()
        if isinstance(selection, Share):
            return SimItem(items.cut(value, selection))
        if not isinstance(value, Chunk):
            return SimItem(part_of(value, selection) if isinstance(value, Value) else value)
        if isinstance(selection, Whole):
            return SimItem(chunks_of(value.whole)[value.number])
        return SimItem(part_of(value.whole, selection))

    def join(self, chunks: Sequence[Chunk]) -> Value:
        """The value that was made in chunks."""
        return chunks[0].whole

    def combine(self, parts: Sequence[Any], how: Combine) -> Any:
        """No edge of a simulated job needs it."""
        raise NotImplementedError

    def rows(self, parts: Sequence[Any]) -> Any:
        """The rows of several items."""
        return items.joined(parts)

    def reader(self, edge: Edge, sources: Sequence[int], how: Combine) -> Reader:
        """How chunks become values."""
        rank = self._rank

        def read(made: int, chunks: list[list[Any]]) -> Any:
            parts = [[arrival.item for arrival in part] for part in chunks]
            if not isinstance(edge.src_partition, Balanced):
                rank.world.checks.used_version(rank, edge, rank.doing, made, sources, parts)
                return gather(parts)
            value = assembled(rank, edge, made, parts, rank.shape, rank.key[1])
            if value is not None:
                rank.world.checks.used_version(rank, edge, rank.doing, made, sources, parts)
            return value

        return read


def effects_of(rank: SimRank, page: SimPage, mail: SimMail, log: SimLog) -> Effects[SimItem]:
    """Return the effects of `rank`."""
    return Effects(page, mail, rank.waits, SimValues(rank), SimMemory(), log, lambda steps: None, lambda: rank.clock_ns)
