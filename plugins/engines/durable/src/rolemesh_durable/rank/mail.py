"""A rank's connections to others, as frames that its endpoint sends and receives."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rolemesh_dataplane.payload import DATA, END, HEAD, Payload
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.protocol.rank.effects import Consumer, Flushed, GroupEnd, Producer
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.frames import ASK, ASKS, BARRIER, BARRIERS, CREDIT, CREDITS

__all__ = ["EndpointMail"]


class EndpointMail:
    """`rolemesh_durable.protocol.rank.effects.Mail` of a process."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self.site, self._sender = endpoint, endpoint.site, endpoint.sender
        self._role, self._rank, self._generation = self.site.role, self.site.rank, self.site.generation
        self.generation = endpoint.generation
        """Returns the newest generation of a peer."""

    def connect(self, peers: Sequence[Peer]) -> None:
        """Set the present addresses of these peers."""
        self._endpoint.connect(peers)

    def forget(self, roles: Collection[str]) -> None:
        """Forget the ranks of these roles, which are gone."""
        self._endpoint.forget(roles)

    def consume(self, edge: int, end: Consumer) -> None:
        """Register the end that takes the chunks of an edge."""
        self._endpoint.register_consumer(edge, end)

    def produce(self, edge: int, end: Producer) -> None:
        """Register the end that takes the asks and acknowledgements of an edge."""
        self._endpoint.register_producer(edge, end)

    def gather(self, end: GroupEnd) -> None:
        """Register the end that takes the group's barrier messages."""

        def take(frame: bytes) -> bool:
            if len(frame) != BARRIERS.size:
                self._endpoint.refuse(f"a message at the barrier with {len(frame)} bytes")
                return True
            _, kind, rank, generation, vote, position = BARRIERS.unpack(frame)
            end.message(rank, generation, kind, position, vote)
            return True

        self._endpoint.register_taker(BARRIER, take)

    def data(
        self, item: Payload | None, role: str, consumers: Sequence[int], edge: int, step: int, chunk: int, last: bool
    ) -> None:
        """Send a chunk (None: the mark that no more come) to `consumers`, ranks of `role`."""
        stamp = (last, edge, self._rank, self._generation, step, chunk)
        if item is not None and item.slots:
            for consumer in consumers:
                self._sender(role, consumer, edge).send_payload(item, stamp)
            return
        frame = HEAD.pack(DATA, END, *stamp, 0, 0) if item is None else item.frame(stamp)
        for consumer in consumers:
            self._sender(role, consumer, edge).send(frame)

    def ask(self, role: str, rank: int, edge: int, from_step: int, released: int) -> None:
        """Ask a producer for all values from `from_step` on; all up to `released` are released."""
        self._sender(role, rank).send(ASKS.pack(ASK, edge, self._rank, self._generation, from_step, released))

    def release(self, role: str, rank: int, edge: int, step: int) -> None:
        """Tell a producer that all values up to `step` are released."""
        self._sender(role, rank).send(CREDITS.pack(CREDIT, edge, self._rank, self._generation, step))

    def tell_group(self, rank: int, kind: int, position: int, vote: int = 0) -> None:
        """Send a rank of the group a barrier message."""
        frame = BARRIERS.pack(BARRIER, kind, self._rank, self._generation, vote, position)
        self._sender(self._role, rank).send(frame)

    def put_off(self, end: Flushed) -> None:
        """Flush `end` before the rank blocks."""
        self._endpoint.put_off(end)

    def flush(self) -> None:
        """Flush all ends that were put off."""
        self._endpoint.flush()

    def pump(self) -> object:
        """Handle the frames that have come; does not wait."""
        return self._endpoint.pump()

    def lose(self, lost: LogLost) -> None:
        """Make every later wait raise `lost`."""
        self._endpoint.lose(lost)
