"""The consumer's end of an edge in a rank: waits for values, decodes and combines them, returns credits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic_ns
from typing import Any

from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Combine, Concat, Take
from rolemesh.graph.values import combine
from rolemesh.protocol.edge import InEdgeState
from rolemesh.rank.board import WAITING, Board
from rolemesh.rank.chunks import join_chunks
from rolemesh.rank.endpoint import Arrived, Endpoint
from rolemesh.rank.meter import Meter
from rolemesh.transport import CREDIT, CREDITS

__all__ = ["InPort"]


class InPort:
    """One input of an operator call."""

    def __init__(
        self,
        edge: Edge,
        role: str,
        sources: Sequence[int],
        how: Combine,
        *,
        endpoint: Endpoint,
        board: Board,
        meter: Meter,
    ) -> None:
        """`sources` are the ranks of `role` that send one part each, `how` makes the value of them."""
        self.edge = edge
        self.state: InEdgeState[Arrived] = InEdgeState(sources)
        self._accept = self.state.accept
        self._endpoint, self._board, self._meter = endpoint, board, meter
        self._lag = edge.lag
        self._how = how
        self._single = len(sources) == 1 and isinstance(how, (Take, Concat))
        self._peers = [(role, source) for source in sources]
        self._batch = max(1, edge.window // 2)
        self._released = -1
        self._pending = 0
        self._put_off = False
        endpoint.register_taker(edge.id, self)

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
