"""The consumer's end of an edge whose value was shared out by demand, where a step takes what is finished first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolemesh.api.partition import Balanced, Split
from rolemesh.graph.items import joined
from rolemesh_durable.protocol.first import FirstChoice, Piece, Taken, share_of
from rolemesh_durable.protocol.rank.choosing_port import ChoosingPort
from rolemesh_durable.protocol.rank.effects import Arrival, Log
from rolemesh_durable.protocol.rank.in_port import Origin
from rolemesh_durable.protocol.sharing import ItemsIn
from rolemesh_durable.transports import TransportError

__all__ = ["FirstPort"]

decode_taken = msgspec.msgpack.Decoder(Taken).decode
encode_taken = msgspec.msgpack.Encoder().encode


class FirstPort(ChoosingPort):
    """One input of an operator call. Which items it takes is logged before, so that a restart takes the same."""

    State = ItemsIn[Arrival]
    _log: Log[Any] | None = None
    _choice: FirstChoice
    _known = True

    def remember(self, log: Log[Any] | None, rank: int, ranks: int) -> None:
        """Log what calls take; this is rank `rank` of `ranks`."""
        self._log, self._rank, self._ranks = log, rank, ranks
        self._choice, self._pieces = FirstChoice(self._lag), dict[Piece, Any]()

    def restored(self, resume: int, records: Mapping[int, bytes]) -> None:
        """`records`: by step, what former generations have logged; the rank goes on after step `resume`."""
        told = {step: decode_taken(record) for step, record in records.items()}
        self._known = resume < 0 or resume in told
        again = {step: taken.took for step, taken in told.items() if step > resume}
        self._choice = FirstChoice(self._lag, taken=told.get(resume), again=again)
        self._released = self._choice.released

    def given_by(self, origin: Origin, step: int) -> dict[int, Any]:
        """The items that were on their way after `step`; and what was taken by then, unless the log knows it."""
        if not self._known and (record := origin.taken(self.edge, step)) is not None:
            self.restored(step, {step: record})
        return origin.items(self.edge)

    def give(self, values: Mapping[int, Any], upto: int) -> None:
        """As for other edges; `values` are lists of items."""
        super().give({}, upto)
        for step, items in values.items():
            for item in items:
                self._came(step, item)

    def ask(self) -> None:
        """As for other edges. Raises `TransportError` if nobody knows what has been taken."""
        if not self._known:
            site = self._mail.site
            raise TransportError(
                f"it is not known which items of {self.edge.param!r} had been taken",
                where=f"role {site.role}, rank {site.rank}",
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
        """The rows that are finished first; waits for those that would be too old, and until there are enough."""
        self._choose(step)
        return joined([self._pieces.pop(piece) for piece in self._choice.took])

    def log_again(self, log: Log[Any]) -> None:
        """The files of the log are gone."""
        if self._choice.step >= 0:
            log.taken(self.edge.id, self._choice.step, encode_taken(self._choice.taken))

    def _choose(self, step: int) -> None:
        choice = self._choice
        if step == choice.step:
            return
        if not choice.choose(step):
            self._wait_until(lambda: choice.choose(step))
        if self._log is not None:
            self._log.taken(self.edge.id, step, encode_taken(choice.taken))
        for made, _ in choice.took:
            self._aged(step - made)

    def _came(self, step: int, item: Sequence[Any]) -> None:
        number, items, _, total, rows = item
        how = self.edge.src_partition
        assert isinstance(how, Balanced)
        rank, ranks = (self._rank, self._ranks) if isinstance(self.edge.dst_partition, Split) else (0, 1)
        if self._choice.came(step, number, share_of(rank, ranks, size=how.rows, items=items, total=total)):
            self._pieces[step, number] = rows
