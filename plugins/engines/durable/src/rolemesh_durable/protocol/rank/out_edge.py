"""The producer's end of one edge in a rank: the conversation with its consumers, and the values kept for them."""

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
"""Bytes that a rank may have under way on an edge without a configured credit; at least two values."""

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
        """`sends` are the parts that this rank sends, each with the consuming ranks of `role`.

        The edge keeps a value of step m until step m + `hold` is committed.
        """
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
        """The newest step that the rank does not make again; None if the log has all that former generations sent.

        Consumers that have used values beyond it cannot continue (`LogLost`).
        """
        self.always = self.on = edge.lag == 0 and job.activity.always(edge.dst)
        self.beyond = False

    def put(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Log and keep a chunk (None: the mark that ends a value), then send it to the consumers that have asked."""
        if self.state.unheard and not self.beyond:
            self._mail.pump()
        if self._log is not None:
            self._log.chunk_of(item, self._id, step, chunk, last, self.state.hold, consumers)
        self.show(item, step, chunk, last, consumers)

    def show(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Keep a chunk that is in the log, and send it to the consumers that have asked.

        A chunk for a step after the job's last one is only logged: a longer job that resumes from there takes it.
        """
        if self.beyond:
            if item is not None:
                item.users += 1
            return
        now = self.keep(item, step, chunk, last, consumers)
        if now:
            self._send(item, self._role, now, self._id, step, chunk, last)

    def keep(self, item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> tuple[int, ...]:
        """Keep a chunk that is in the log. Return the consumers that have asked for it."""
        if item is None:
            return self.state.sent(step, chunk, last, consumers, None, 0)
        item.users += 1
        return self.state.sent(step, chunk, last, consumers, item, len(item.body), item.nbytes)

    def write(self, log: Log[T], item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]) -> None:
        """Log a chunk that the rank is about to send."""
        log.chunk_of(item, self._id, step, chunk, last, self.state.hold, consumers)

    def open(self) -> None:
        """Answer asks from now on, including those that have come already."""
        self._mail.produce(self._id, self)

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """Note that a consumer has released everything up to `step`. Ignore a consumer of an earlier layout."""
        if not self.state.feeds(consumer):
            return
        waiting = self._pending.get(consumer)
        if waiting is not None and waiting[0] == generation:
            self._pending[consumer] = (generation, waiting[1], max(waiting[2], step))
            return
        free(self.state.acked(consumer, generation, step))

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """Answer an ask: send the kept chunks from `from_step` on, and later ones as they come.

        An ask of a generation whose address is not known yet waits for the address.
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
        """Return True if the rank knows the addresses of all consumers."""
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
        """Ignore what former generations made at `step` and after. Raises `LogLost` if a consumer has used it."""
        self.made = step - 1
        for consumer, from_step in self.state.ahead:
            self._check_used(consumer, from_step)

    def rewire(self) -> None:
        """Note that addresses have changed: consumers of a new generation get nothing before they ask."""
        for group in self.sends:
            for consumer in group[1]:
                self.state.restarted(consumer, self._mail.generation(self._role, consumer))
        pending, self._pending = self._pending, {}
        for consumer, ask in pending.items():
            self.asked(consumer, *ask)


def free(items: Iterable[Item]) -> None:
    """Release items that no consumer needs."""
    for item in items:
        item.free()
