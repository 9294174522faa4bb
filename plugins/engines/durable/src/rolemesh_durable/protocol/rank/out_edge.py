"""The producer's end of one edge in a rank: the conversation with its consumers, and what is kept for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from rolemesh.graph.routes import Selection
from rolemesh_durable.protocol.delivery import Delivery
from rolemesh_durable.protocol.edge import LogLost, OutEdgeState
from rolemesh_durable.protocol.rank.effects import Effects, Item, Log
from rolemesh_durable.protocol.rank.shape import JobShape

__all__ = ["OutEdge", "free"]

BUDGET = 8 << 20
"""Bytes that a rank may have under way on an edge whose credits nobody has named; two values, if they are larger."""

T = TypeVar("T", bound=Item)


class OutEdge(Generic[T]):
    """One edge out of an operator call, as this producer rank sees it."""

    __slots__ = (
        "_id",
        "_job",
        "_log",
        "_mail",
        "_pending",
        "_role",
        "_send",
        "always",
        "beyond",
        "delivery",
        "edge",
        "made",
        "on",
        "sends",
        "state",
    )

    def __init__(
        self,
        job: JobShape,
        effects: Effects[T],
        delivery: Delivery,
        role: str,
        sends: Sequence[tuple[Selection, tuple[int, ...]]],
        hold: int,
    ) -> None:
        """`sends` are the parts that this rank sends, each with the consuming ranks of `role`. The edge keeps a value
        of step m until step m + `hold` is committed."""
        edge = delivery.edge
        self.delivery, self.edge, self.sends = delivery, edge, sends
        self._id, self._role, self._job = edge.id, role, job
        self._mail, self._log, self._send = effects.mail, effects.log, effects.mail.data
        consumers = [consumer for _, group in sends for consumer in group]
        self.state: OutEdgeState[T] = OutEdgeState(
            consumers, edge.window, retain=job.retention, hold=hold, budget=BUDGET if edge.credits is None else 0
        )
        self._pending: dict[int, tuple[int, int, int]] = {}
        self.made: int | None = None
        """Of a rank whose former generations may have sent what is in no log: the newest step that is not made again.
        What consumers have used beyond it they have to give back (`LogLost`)."""
        self.always = self.on = edge.lag == 0 and job.activity.always(edge.dst)
        self.beyond = False

    def put(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Log and keep a chunk (None: the mark that no more come), then send it to those who listen."""
        if self.state.unheard and not self.beyond:
            self._mail.pump()
        if self._log is not None:
            self._log.chunk_of(item, self._id, step, chunk, last, self.state.hold, consumers)
        self.show(item, step, chunk, last, consumers)

    def show(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Keep a chunk that is in the log, and send it to those who listen.

        What would be taken after the job's last step is only logged: a longer job that resumes from that one takes it.
        """
        if self.beyond:
            if item is not None:
                item.users += 1
            return
        now = self.keep(item, step, chunk, last, consumers)
        if now:
            self._send(item, self._role, now, self._id, step, chunk, last)

    def keep(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> tuple[int, ...]:
        """Keep what is in the log already; who listens now is returned."""
        if item is None:
            return self.state.sent(step, chunk, last, consumers, None, 0)
        item.users += 1
        return self.state.sent(step, chunk, last, consumers, item, len(item.body), item.nbytes)

    def write(self, log: Log[T], item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Log a chunk that is about to be sent."""
        log.chunk_of(item, self._id, step, chunk, last, self.state.hold, consumers)

    def open(self) -> None:
        """Answer asks from now on, those that have come already among them."""
        self._mail.produce(self._id, self)

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
        if generation > self._mail.generation(self._role, consumer):
            self._pending[consumer] = (generation, from_step, released)
            return
        if self.made is not None:
            self._check_used(consumer, from_step)
        for kept in self.state.ask(consumer, generation, from_step, released):
            self._send(kept.item, self._role, (consumer,), self._id, kept.step, kept.chunk, kept.last)

    @property
    def wired(self) -> bool:
        """Whether it is known where all consumers are."""
        return all(self._mail.generation(self._role, each) >= 0 for _, group in self.sends for each in group)

    def _check_used(self, consumer: int, from_step: int) -> None:
        try:
            self._refuse_used(consumer, from_step)
        except LogLost as lost:
            self._mail.lose(lost)
            raise

    def _refuse_used(self, consumer: int, from_step: int) -> None:
        assert self.made is not None
        consumed, steps = self._job.activity.consumed, self._job.steps
        for step in range(self.made + 1, from_step):
            if consumed(self.edge, step, steps):
                raise LogLost(
                    f"{self._role}/{consumer} has used what was made at step {step}, which is in no log any more, and "
                    "would be made again: it need not come to the same",
                    where=f"the value for {self.edge.param!r}",
                    remedy="a failover level that takes every rank back to the disk (job)",
                )

    def void(self, step: int) -> None:
        """What former generations have made at `step` and after does not count. Raises `LogLost` if it was used."""
        self.made = step - 1
        for consumer, from_step in self.state.ahead:
            self._check_used(consumer, from_step)

    def rewire(self) -> None:
        """Addresses have changed: consumers of a new generation get nothing before they ask."""
        for group in self.sends:
            for consumer in group[1]:
                self.state.restarted(consumer, self._mail.generation(self._role, consumer))
        pending, self._pending = self._pending, {}
        for consumer, ask in pending.items():
            self.asked(consumer, *ask)


def free(items: Iterable[Item]) -> None:
    """Nobody needs these any more."""
    for item in items:
        item.free()
