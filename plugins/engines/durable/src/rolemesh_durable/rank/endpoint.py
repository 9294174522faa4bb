"""A rank's endpoint: one inbox for all messages, and the connections to peers and the agent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import zmq

from rolemesh_dataplane.codec import Buffer, flat_buffers, unflatten
from rolemesh_dataplane.inbox import Inbox
from rolemesh_dataplane.lending import Lender
from rolemesh_dataplane.payload import DATA, END, HEAD, IN_FRAMES, IN_SLOT, INLINE
from rolemesh_dataplane.pieces import CUT, joined, rest
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.slot_reader import SlotReader
from rolemesh_dataplane.transports import Sender, Site, Transport, TransportError
from rolemesh_durable.malformed import UNREADABLE, Dropped
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.messages import AgentToRank, Peer, RankToAgent, Stop, decode_agent_to_rank, encode
from rolemesh_durable.protocol.rank.effects import Consumer, Flushed, Producer, Stopping
from rolemesh_durable.rank import frames
from rolemesh_durable.rank.arrived import Arrived
from rolemesh_durable.rank.loopback import Loopback

__all__ = ["Endpoint"]

LATER = frozenset((frames.BARRIER, frames.CHANNEL))
"""Tags of frames that a part of the rank takes which may be created later."""
HEAD_BYTES, unpack_head = HEAD.size, HEAD.unpack_from

IDLE_MS = 50
"""Milliseconds that a wait may last before the rank sends metrics that were put off."""
FEW_PEERS = 900
"""Number of peers that need no larger limit. Each has a socket, of which a context has 1023 by default."""
LONG_IDLE_MS = 800
"""Milliseconds of a wait if nothing was put off, after some shorter ones: a thousand ranks may wait at once."""
LINGER_MS = 500
"""Milliseconds for frames that are queued for a peer when the rank leaves.

Everything that matters is acknowledged before.
"""


class Endpoint:
    """Opens the inbox, connects to peers when they are first needed, and hands frames to the ports.

    Not thread-safe: all calls come from the rank's main thread.
    """

    def __init__(
        self,
        site: Site,
        *,
        transports: Mapping[str, Transport],
        local: str,
        remote: str = "",
        on_control: Callable[[AgentToRank], None] | None = None,
        agent_address: str = "",
        peers: int = FEW_PEERS + 1,
        keep_slots: bool = False,
    ) -> None:
        """`transports` are the transports by name: all of them are opened.

        `local` connects ranks of one node, `remote` (if the job has several nodes) all others. `agent_address` is the
        zmq address to which `report` pushes. `peers` is the largest number of peers. Raises `TransportError`.
        """
        self.site = site
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        if peers > FEW_PEERS:
            self._context.set(zmq.MAX_SOCKETS, self._context.get(zmq.SOCKET_LIMIT))  # takes a megabyte
        self._inbox = Inbox(self._context, site.ipc_path("inbox"))
        self._ways, self.transports = (local, remote), dict(transports)
        """The transports by name."""
        self._edges: Mapping[int, tuple[str, str]] = {}
        self.addresses = self._open()
        """The addresses at which peers and the agent (``control``) reach this rank, for `RankHello`."""
        self.pool = SlotPool(site.shm_dir, f"slot-{site.role}-{site.rank}-{site.generation}")
        self.reader = SlotReader(site.shm_dir)
        self.lender = Lender(self.pool, self.reader)
        self._on_control, self._keep_slots = on_control, keep_slots
        self.stopping = False
        """True once the agent has asked the rank to stop: every wait raises `Stopping`."""
        self.lost: LogLost | None = None
        """Set if consumers have used values that no log has any more.

        Each wait raises it, in case an operator catches it.
        """
        self._idle: tuple[Callable[[], bool], ...] = ()
        self._waits: tuple[Callable[[int], bool], ...] = ()
        self._on_refused: Callable[[int], None] = lambda refused: None
        self._refused = 0
        self._dropped = Dropped(str(site.ref))
        self._peers: dict[tuple[str, int], Peer] = {}
        self._senders: dict[tuple[str, int, str], Sender] = {}
        self._consumers: dict[int, Consumer] = {}
        self._producers: dict[int, Producer] = {}
        self._takers: dict[int, Callable[[bytes], bool]] = {}
        self._early: list[tuple[bytes, list[Buffer]]] = []
        self._early_messages: list[bytes] = []
        self._dirty: list[Flushed] = []
        self._socket = socket = self._inbox.socket
        socket.setsockopt(zmq.RCVTIMEO, IDLE_MS)
        self._receive = socket.recv
        self._agent: zmq.Socket[bytes] | None = None
        if agent_address:
            self._agent = self._context.socket(zmq.PUSH)
            self._agent.set_hwm(0)
            self._agent.connect(agent_address)

    def _open(self) -> dict[str, str]:
        try:
            found = {name: transport.open(self._inbox, self.site) for name, transport in self.transports.items()}
        except BaseException:
            # An open socket would keep the context, and with it the process, from ending.
            self._inbox.close()
            self._context.destroy(linger=0)
            raise
        return found | {"control": self._inbox.address}

    # ------------------------------------------------------------------------------------------------- the ways out

    def assign(self, edges: Mapping[int, tuple[str, str]]) -> None:
        """Send the data of each of these edges with its own transports: within a node, and between nodes."""
        self._edges = edges

    def connect(self, peers: Sequence[Peer]) -> None:
        """Set the addresses of these peers.

        A peer of a new generation gets a new connection; frames to the dead one are dropped.
        """
        for peer in peers:
            key = peer.ref
            known = self._peers.get(key)
            if known is not None and (known.generation > peer.generation or known == peer):
                continue
            self.disconnect(*key)
            self._peers[key] = peer

    def forget(self, roles: Collection[str]) -> None:
        """Forget the ranks of these roles. The agent sends the addresses of the next ones."""
        for key in [key for key in self._peers if key[0] in roles]:
            del self._peers[key]
            self.disconnect(*key)

    def disconnect(self, role: str, rank: int, linger_ms: int = 0) -> None:
        """Close the connection to a peer, if there is one. Queued frames have `linger_ms` to leave."""
        for key in [key for key in self._senders if key[:2] == (role, rank)]:
            self._senders.pop(key).close(linger_ms)

    def generation(self, role: str, rank: int) -> int:
        """Return the newest generation of a peer that the rank knows; -1 if it knows none."""
        if (role, rank) == self.site.ref:
            return self.site.generation
        peer = self._peers.get((role, rank))
        return peer.generation if peer is not None else -1

    def sender(self, role: str, rank: int, edge: int = -1) -> Sender:
        """Return the connection to a peer, for the data of `edge`.

        Raises `TransportError` if the peer is unknown or cannot be reached from here.
        """
        peer = self._peers.get((role, rank))
        name = self._edges.get(edge, self._ways)[peer is not None and peer.node != self.site.node]
        key = role, rank, name
        if (sender := self._senders.get(key)) is not None:
            return sender
        where = self.site.ref.in_words
        if (role, rank) == self.site.ref:
            return self._senders.setdefault(key, Loopback(self._handle))
        if peer is None:
            raise TransportError(f"no address for role {role}, rank {rank}", where=where)
        if name not in peer.addresses:
            raise TransportError(
                f"role {role}, rank {rank} on node {peer.node} offers {sorted(peer.addresses)}, not {name}",
                where=where,
                remedy="engine.options.transports of the job file must be the same for all ranks",
            )
        return self._senders.setdefault(key, self.transports[name].connect(peer.addresses[name]))

    def report(self, message: RankToAgent) -> None:
        """Send a message to the agent; returns at once."""
        if self._agent is not None:
            self._agent.send(encode(message))

    # ------------------------------------------------------------------------------------------------ what comes in

    def register_consumer(self, edge: int, consumer: Consumer) -> None:
        """Hand the chunks of `edge` to `consumer`, including earlier ones."""
        self._consumers[edge] = consumer
        early, self._early = self._early, []
        for frame, more in early:
            self._data(frame, more)

    def register_producer(self, edge: int, producer: Producer) -> None:
        """Hand the asks and acknowledgements of `edge` to `producer`, including earlier ones."""
        self._producers[edge] = producer
        self._repeat_early()

    def register_taker(self, tag: int, take: Callable[[bytes], bool]) -> None:
        """Hand frames with `tag` to `take`, including earlier ones. It returns False to get a frame later."""
        self._takers[tag] = take
        self._repeat_early()

    def _repeat_early(self) -> None:
        early, self._early_messages = self._early_messages, []
        for frame in early:
            self._handle(frame)

    def attend(self, idle: Sequence[Callable[[], bool]], waits: Sequence[Callable[[int], bool]] = ()) -> None:
        """Call all of `idle` before the rank blocks, and every 50 ms while it blocks.

        Each returns True if the rank should wait at most 50 ms. One of `waits` may do the waiting, for at most the
        milliseconds in its argument, and then returns True.
        """
        self._idle, self._waits = tuple(idle), tuple(waits)

    def watch_refusals(self, told: Callable[[int], None]) -> None:
        """Call `told` with the number of refused connections whenever it has grown."""
        self._on_refused = told

    def stop(self) -> None:
        """Raise `Stopping` in every wait from now on."""
        self.stopping = True

    def lose(self, lost: LogLost) -> None:
        """Raise `lost` in every wait from now on."""
        self.lost = lost

    def idle(self) -> bool:
        """Do the rank's idle work before it blocks. Return True if it should block for at most 50 ms."""
        soon = False
        for hook in self._idle:
            soon = hook() or soon
        return soon

    def put_off(self, end: Flushed) -> None:
        """Flush `end` before the rank blocks."""
        self._dirty.append(end)

    def wait(self) -> None:
        """Handle all messages that are there; block until there is one. Raises `Stopping`, `TransportError`.

        A rank of a group handles one message only: the release of the group may be followed by messages of later steps.
        """
        if self.stopping:
            raise Stopping
        if self.lost is not None:
            raise self.lost
        if not (self._handle_next() if frames.BARRIER in self._takers else self._handle_all()):
            self._handle(self._block())
        if self.stopping:
            raise Stopping

    def _block(self) -> bytes:
        wait_ms = IDLE_MS
        while True:
            self.flush()
            soon = self.idle()
            try:
                if any(wait(IDLE_MS) for wait in self._waits):
                    return self._receive(zmq.NOBLOCK)
                if wait_ms <= IDLE_MS or self._socket.poll(wait_ms):
                    return self._receive()
            except zmq.Again:
                pass
            wait_ms = IDLE_MS if soon else min(2 * wait_ms, LONG_IDLE_MS)
            self._count_refused()

    @property
    def inbox(self) -> zmq.Socket[bytes]:
        """The socket on which the rank waits."""
        return self._socket

    def look(self) -> bool:
        """As a wait that does not block: handle all messages, or do the idle work. Return True if there were any."""
        found = self.pump()
        if not found:
            self.flush()
            self.idle()
        return found

    def refuse(self, what: object) -> None:
        """Count a message that no rank of this job can have sent."""
        self._dropped(what)

    def pump(self, timeout_s: float = 0.0) -> bool:
        """Handle all messages, after a wait of up to `timeout_s` for the first. Return True if there were any.

        Does not raise `Stopping`: look at the control object.
        """
        if timeout_s > 0:
            self.flush()
            if not self._socket.poll(int(timeout_s * 1000) or 1):
                return False
        self._count_refused()
        return self._handle_all()

    def _handle_next(self) -> bool:
        try:
            frame = self._receive(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._handle(frame)
        return True

    def _handle_all(self) -> bool:
        found, receive, handle, at_once = False, self._receive, self._handle, zmq.NOBLOCK
        while True:
            try:
                frame = receive(at_once)
            except zmq.Again:
                return found
            found = True
            handle(frame)

    def flush(self) -> None:
        """Send the acknowledgements that were put off."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for consumer in dirty:
                consumer.flush()

    def _handle(self, frame: bytes, more: list[Buffer] | None = None) -> None:
        tag = frame[0] if frame else 0
        if tag == DATA and len(frame) >= HEAD_BYTES:
            self._data(frame, more)
        elif tag == frames.CREDIT and len(frame) == frames.CREDITS.size:
            _, edge, consumer, generation, step = frames.CREDITS.unpack(frame)
            producer = self._producers.get(edge)
            if producer is not None:
                producer.acked(consumer, generation, step)
            else:
                self._early_messages.append(frame)
        elif tag == frames.CONTROL:
            try:
                message = decode_agent_to_rank(memoryview(frame)[1:])
            except UNREADABLE as error:
                self._drop(error)
                return
            if isinstance(message, Stop):
                self.stop()
            if self._on_control is not None:
                self._on_control(message)
        elif tag == frames.ASK and len(frame) == frames.ASKS.size:
            _, edge, consumer, generation, from_step, released = frames.ASKS.unpack(frame)
            producer = self._producers.get(edge)
            if producer is not None:
                producer.asked(consumer, generation, from_step, released)
            else:
                self._early_messages.append(frame)
        elif tag in LATER:
            take = self._takers.get(tag)
            if take is None or not take(frame):
                self._early_messages.append(frame)
        elif frame == CUT and (whole := joined(self._socket)):
            self._handle(bytes(whole[0]), whole[1:])
        else:
            self._drop(f"a frame of {len(frame)} bytes with tag {tag}")

    def _data(self, frame: bytes, more: list[Buffer] | None) -> None:
        _, form, last, edge, rank, generation, step, chunk, hlen, count = unpack_head(frame)
        if form == IN_FRAMES and more is None:
            more = list(rest(self._socket))
        consumer = self._consumers.get(edge)
        if consumer is None:
            self._early.append((frame, more or []))
            return
        try:
            item = None if form == END else self._item(form, frame, hlen, count, more)
        except (TransportError, *UNREADABLE) as error:
            self._drop(error)
        else:
            consumer.arrived(rank, generation, step, chunk, bool(last), item)

    def _item(self, form: int, frame: bytes, hlen: int, count: int, more: list[Buffer] | None) -> Arrived:
        header, sizes, rest = unflatten(frame, HEAD.size, hlen, count)
        if form == INLINE:
            return Arrived(header, flat_buffers(frame, rest, sizes), self.reader, small=True)
        if form == IN_SLOT:
            return Arrived(header, None, self.reader, frame[rest:].decode(), sizes)
        if form == IN_FRAMES and more is not None and tuple(map(len, more)) == sizes:
            return Arrived(header, more, self.reader)
        raise ValueError(f"a data frame of form {form} does not fit its sizes")

    def _drop(self, what: object) -> None:
        """Drop a message that no rank of this job has sent: the next one may be valid."""
        self._dropped(what)
        while self._socket.getsockopt(zmq.RCVMORE):
            self._socket.recv()

    def refused(self) -> int:
        """Number of connections that the transports have refused, and of unreadable messages."""
        return self._dropped.count + sum(transport.refused() for transport in self.transports.values())

    def _count_refused(self) -> None:
        if (refused := self.refused()) != self._refused:
            self._refused = refused
            self._on_refused(refused)

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Close everything and remove the rank's socket and slots. Idempotent.

        Reports to the agent may take `linger_ms` to leave, and so may frames to peers, unless the job is stopping.
        """
        if self._context.closed:
            return
        for sender in self._senders.values():
            sender.close(0 if self.stopping else linger_ms)
        if self._agent is not None:
            self._agent.close(linger=linger_ms)
        for transport in self.transports.values():
            transport.close()
        self._inbox.close()
        self.reader.close()
        self.pool.close(keep=self._keep_slots)
        self._context.destroy(linger=linger_ms)
