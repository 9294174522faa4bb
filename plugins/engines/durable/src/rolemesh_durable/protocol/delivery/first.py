"""First finished: a step takes the items that were finished first, at most `lag` steps old.

A consumer rank takes at each step as many items as one step has for it. It takes the items first that would be too old
at the next step, then the others in the order in which they came. By any step the producers have made at least as many
items as the rank has taken. So no rank waits for items that are not due, and no item is dropped. After a
restart, a step takes the same items again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from rolemesh.api.partition import Split
from rolemesh.graph.routes import by_demand
from rolemesh.graph.schedule import Period
from rolemesh_dataplane.transports import TransportError
from rolemesh_durable.protocol.delivery.choosing import Choosing, ChoosingPort
from rolemesh_durable.protocol.delivery.exact import InPort, OriginValues
from rolemesh_durable.protocol.delivery.items import ItemsIn
from rolemesh_durable.protocol.delivery.policy import ConsumerEnd
from rolemesh_durable.protocol.rank.effects import Arrival, Effects, Log

__all__ = ["First", "FirstChoice", "FirstPort", "Piece", "Taken", "share_of"]

Piece: TypeAlias = tuple[int, int]
"""An item: its step and its number."""


def share_of(rank: int, ranks: int, *, size: int, items: int, total: int) -> range:
    """Return the items in which rank `rank` of `ranks` has rows; at least one, maybe without rows.

    Each rank gets an equal part of `total` rows, which are in `items` items of `size` rows.
    """
    low, high = total * rank // ranks, total * (rank + 1) // ranks
    begin = min(low // size, items - 1)
    return range(begin, max(begin + 1, -(-high // size)))


class Taken(NamedTuple):
    """The items that a rank has taken after a step.

    `took`: Items that the step took.
    `beyond`: Items of steps after `released` that the rank has taken.
    `released`: The rank has taken all items of the steps up to this one.
    """

    took: tuple[Piece, ...] = ()
    beyond: tuple[Piece, ...] = ()
    released: int = -1


class FirstChoice:
    """The choices of one consumer rank: `took` holds the items of `step`."""

    def __init__(
        self, lag: int, *, taken: Taken | None = None, again: Mapping[int, Sequence[Piece]] | None = None
    ) -> None:
        """`taken`: the items that the rank had taken after the step from which it continues.

        `again`: by step, the items that a former generation took.
        """
        self._lag, self._again = lag, again or {}
        self._taken = set(taken.beyond if taken is not None else ())
        self.released = taken.released if taken is not None else -1
        """The rank has taken all items of the steps up to this one."""
        self.step = -1
        self.took: tuple[Piece, ...] = ()
        self._wanted: dict[int, frozenset[int]] = {}
        self._ready: dict[Piece, None] = {}
        self._each = 0

    @property
    def taken(self) -> Taken:
        """The decision that a restart needs."""
        return Taken(self.took, tuple(sorted(self._taken)), self.released)

    def came(self, step: int, number: int, wanted: Collection[int]) -> bool:
        """Note that item `number` of `step` has come. This rank gets the items in `wanted`.

        Returns True if the item is new and one of them. Raises `ValueError` for steps of different size.
        """
        if step <= self.released:
            return False
        self._each = self._each or len(wanted)
        if len(wanted) != self._each:
            raise ValueError(f"step {step} has {len(wanted)} items for this rank, others {self._each}")
        self._wanted.setdefault(step, frozenset(wanted))
        piece = step, number
        if number not in wanted or piece in self._taken or piece in self._ready:
            return False
        self._ready[piece] = None
        return True

    def choose(self, step: int) -> bool:
        """Return True if enough items have come for `step`."""
        found = self._again.get(step)
        if found is None:
            found = self._choice(step - self._lag)
        if not found or not all(tuple(piece) in self._ready for piece in found):
            return False
        self.step, self.took = step, tuple(sorted((made, number) for made, number in found))
        for piece in self.took:
            del self._ready[piece]
        self._taken.update(self.took)
        while whole := {(self.released + 1, number) for number in self._wanted.get(self.released + 1, ())}:
            if not whole <= self._taken:
                break
            self._taken -= whole
            self.released += 1
            del self._wanted[self.released]
        return True

    def _choice(self, due: int) -> list[Piece]:
        if due > self.released and due not in self._wanted:
            return []
        must = [(due, number) for number in self._wanted.get(due, ()) if (due, number) not in self._taken]
        if any(piece not in self._ready for piece in must):
            return []
        rest = [piece for piece in self._ready if piece not in must][: self._each - len(must)]
        return must + rest if self._each == len(must) + len(rest) else []


class First(Choosing):
    """A step takes the items that were finished first, at most `lag` steps old."""

    kind = "first"

    one_version: ClassVar[bool] = False
    """False: each rank may take other items than the other ranks do."""

    def port(self, end: ConsumerEnd, effects: Effects[Any]) -> InPort:
        """The consumer's end in a rank."""
        return FirstPort(self, end, effects)

    def awaited(self, step: int) -> tuple[int, ...]:
        """The items that are due; then those of `step`, if no item is due but there are too few."""
        return (step - self.edge.lag, step)

    def resize_refusal(self, role: str) -> str:
        """Return why ranks cannot be resized: each has taken other items, so they cannot go to other ranks."""
        return f"each rank of {role} has taken other rows of {self.edge.param!r}, as they were finished"

    def _next_step(self, period: Period | None, resume: int) -> int:
        """The call runs at every step."""
        return resume + 1

    def wanted(self, end: ConsumerEnd, items: int, total: int) -> range:
        """The items in which a rank has rows, if a step has `total` rows in `items` items."""
        how = by_demand(self.edge.src_partition)
        assert how is not None
        rank, ranks = (end.rank, end.ranks) if isinstance(self.edge.dst_partition, Split) else (0, 1)
        return share_of(rank, ranks, size=how.rows * how.results, items=items, total=total)


decode_taken = msgspec.msgpack.Decoder(Taken).decode
encode_taken = msgspec.msgpack.Encoder().encode


class FirstPort(ChoosingPort):
    """One input of an operator call. The port logs its items before the call, so that a restart takes the same ones."""

    State = ItemsIn[Arrival]
    _choice: FirstChoice
    _known = True

    def __init__(self, delivery: First, end: ConsumerEnd, effects: Effects[Any]) -> None:
        super().__init__(delivery, end, effects)
        self._delivery, self._end, self._log = delivery, end, effects.log
        self._choice = FirstChoice(self._lag)
        self._pieces = dict[Piece, Any]()

    def recall(self, resume: int, decisions: Mapping[int, bytes]) -> None:
        """Take the items that former generations took, by step. The rank continues after step `resume`."""
        told = {step: decode_taken(body) for step, body in decisions.items()}
        self._known = resume < 0 or resume in told
        again = {step: taken.took for step, taken in told.items() if step > resume}
        self._choice = FirstChoice(self._lag, taken=told.get(resume), again=again)
        self._released = self._choice.released

    def given_by(self, origin: OriginValues, step: int) -> dict[int, Any]:
        """Return the items that were in flight after `step`.

        Also read the rank's taken items, unless its log has them.
        """
        if not self._known and (taken := origin.decision(self.edge, self.scope, step)) is not None:
            self.recall(step, {step: taken})
        return origin.items(self.edge)

    def give(self, values: Mapping[int, Any], upto: int) -> None:
        """As for other edges; `values` are lists of items."""
        super().give({}, upto)
        for step, items in values.items():
            for item in items:
                self._came(step, item)

    def ask(self) -> None:
        """As for other edges. Raises `TransportError` if neither log nor snapshot has the rank's taken items."""
        if not self._known:
            site = self._mail.site
            raise TransportError(
                f"it is not known which items of {self.edge.param!r} had been taken",
                where=site.ref.in_words,
                remedy="go back to a checkpoint: 'rolemesh checkpoint list' shows them",
            )
        super().ask()

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Arrival | None) -> None:
        """Take a chunk."""
        if item is not None and self.edge.credits is None:
            self._batch = 1
        if self._accept(source, generation, step, chunk, last, item) and item is not None:
            value: Any = item.value()
            self._came(step, value)

    def take(self, step: int) -> Any:
        """Return the rows that are finished first. Waits for rows that would be too old, and until there are enough."""
        self._choose(step)
        return self._values.rows([self._pieces.pop(piece) for piece in self._choice.took])

    def log_again(self, log: Log[Any]) -> None:
        """Write the last decision to a log that has lost its files."""
        if self._choice.step >= 0:
            self._decide(log, self._choice.step)

    def _choose(self, step: int) -> None:
        choice = self._choice
        if step == choice.step:
            return
        if not choice.choose(step):
            self._wait_until(lambda: choice.choose(step))
        if self._log is not None:
            self._decide(self._log, step)
        for made, _ in choice.took:
            self._aged(step - made)

    def _decide(self, log: Log[Any], step: int) -> None:
        log.decide(self.scope, step, 1, encode_taken(self._choice.taken), persists=True)

    def _came(self, step: int, item: Sequence[Any]) -> None:
        number, items, _, total, rows = item
        if self._choice.came(step, number, self._delivery.wanted(self._end, items, total)):
            self._pieces[step, number] = rows
