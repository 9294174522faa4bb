"""Exact lag: a step takes the value of exactly `lag` steps before. The in-port waits, decodes, and returns credits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

from rolemesh.api.partition import Streaming
from rolemesh.graph.logical import Edge
from rolemesh.graph.routes import Concat, Take
from rolemesh_durable.protocol.delivery.policy import ConsumerEnd, Delivery
from rolemesh_durable.protocol.edge import InEdgeState
from rolemesh_durable.protocol.rank.effects import Arrival, Effects, Log
from rolemesh_durable.protocol.rank.page import WAITING
from rolemesh_runtime.values import check_even

__all__ = ["Exact", "InPort", "OriginValues"]

BATCH = 256
"""Number of small values that the port acknowledges at once, if the flow names no credits for the edge."""


class Exact(Delivery):
    """A step takes the value of exactly `lag` steps before."""

    kind = "exact"

    def port(self, end: ConsumerEnd, effects: Effects[Any]) -> InPort:
        """The consumer's end in a rank."""
        return InPort(self, end, effects)


class OriginValues(Protocol):
    """A persisted snapshot, as a rank of a consuming role sees it."""

    def values(self, edge: Edge) -> dict[int, Any]:
        """The rank's whole values on `edge`, by the step they were made at."""

    def items(self, edge: Edge) -> dict[int, list[Any]]:
        """The items of each step, of an edge of which the rank takes items."""

    def decision(self, edge: Edge, scope: str, step: int) -> bytes | None:
        """The rank's own decision at `step` about `scope`, at the consumer's end of `edge`."""


class InPort:
    """One input of an operator call."""

    State: ClassVar[type[InEdgeState[Arrival]]] = InEdgeState

    def __init__(self, delivery: Delivery, end: ConsumerEnd, effects: Effects[Any]) -> None:
        edge = delivery.edge
        self.edge = edge
        self.scope = delivery.scope
        """The scope of the port's decisions in the send log."""
        self.first = end.first
        """The first producer step whose value the rank needs."""
        self.state: InEdgeState[Arrival] = self.State(end.sources, end.first, revocable=end.revocable)
        self._accept = self.state.accept
        self._mail, self._until, self._aged = effects.mail, effects.waits.until, effects.aged
        self._values, self._read = effects.values, effects.values.reader(edge, end.sources, end.how)
        self._lag = edge.lag
        self._how = end.how
        self._peers = [(end.role, source) for source in end.sources]
        self._batch = BATCH if edge.credits is None else max(1, edge.window // 2)
        self._released = end.first - 1
        self._pending = 0
        self._put_off = False
        self._asked = dict.fromkeys(end.sources, -1)
        self._not_before = 0
        self._given: dict[int, Any] = {}
        effects.mail.consume(edge.id, self)

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Arrival | None) -> None:
        """Take a chunk. A source that it does not have was one of an earlier layout."""
        if source not in self._asked:
            return
        if item is not None and self.edge.credits is None:
            self._batch = BATCH if item.small else 1
        self._accept(source, generation, step, chunk, last, item)

    def give(self, values: Mapping[int, Any], upto: int) -> None:
        """Take `values`, by their producer step, from elsewhere. `ask` then asks for the values after step `upto`."""
        self._given.update(values)
        self._not_before = upto + 1

    def given_by(self, origin: OriginValues, step: int) -> dict[int, Any]:
        """The values in flight to this port when the job persisted `step`, for `give`."""
        return origin.values(self.edge)

    def recall(self, resume: int, decisions: Mapping[int, bytes]) -> None:
        """Repeat the decisions of former generations, by step. The rank continues after step `resume`.

        An exact lag leaves nothing to decide.
        """

    def log_again(self, log: Log[Any]) -> None:
        """Write the decisions that a restart needs to a log that has lost its files."""

    @property
    def wired(self) -> bool:
        """True if the port has asked all producers."""
        return min(self._asked.values()) >= 0

    def ask(self) -> None:
        """Ask each producer whose generation is new for all that has not come from it."""
        mail = self._mail
        for role, source in self._peers:
            generation = mail.generation(role, source)
            if generation > self._asked[source]:
                self._asked[source] = generation
                first = max(self.state.restart_source(source, generation), self._not_before)
                mail.ask(role, source, self.edge.id, first, self._released)

    def take(self, step: int) -> Any:
        """Return the complete value for `step`; waits for it."""
        made = step - self._lag
        state = self.state
        if made in self._given:
            return self._given.pop(made)
        if not state.ready(made):
            self._wait_ready(made)
        return self._read(made, state.take(made))

    def early(self, step: int) -> Any:
        """Return the value for a later `step` if it has come and will not change, else None. The step takes it again.

        A value of the same step shows that its producers have finished that step. So no rank stops before it.
        """
        return self._read(step, self.state.peek(step)) if not self._lag and self.state.settled(step) else None

    def await_all(self, step: int) -> None:
        """Wait until the value for `step` has come, with all its chunks. From then on it counts as used."""
        made = step - self._lag
        if made not in self._given:
            if not self.state.ready(made):
                self._wait_ready(made)
            self.state.use(made)

    def stream(self, step: int, how: Streaming = True) -> Iterator[Any]:
        """Yield the chunks for `step` as they come.

        The order is chunk 0 of all producers in rank order, then chunk 1, and so on; or the order of arrival, if `how`
        asks for it. If parts only make sense together (sums, shards), the producers' chunks of one number are combined.
        """
        made, index = step - self._lag, 0
        if made in self._given:
            yield self._given[made]
            return
        apart = isinstance(self._how, Take) or (isinstance(self._how, Concat) and self._how.axis == 0)
        positions = range(len(self.state.sources))
        if how == "arrival" and apart:
            yield from self._arriving(made)
            return
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
                check_even(self.edge.param, len(found), len(positions))
                yield self._values.combine([item.value() for item in found], self._how)
            index += 1

    def _arriving(self, made: int) -> Iterator[Any]:
        """Yield chunks in the order of arrival; those of one producer stay in its order."""
        state = self.state
        following = dict.fromkeys(range(len(state.sources)), 0)

        def come() -> list[int]:
            return [at for at, index in following.items() if state.chunk(made, at, index) is not None]

        def ended() -> list[int]:
            return [at for at in following if state.ended(made, at)]

        while following:
            for at in (came := come()):
                item = state.chunk(made, at, following[at])
                assert item is not None
                following[at] += 1
                yield item.value()
            if not came:
                self._wait_until(lambda: come() or ended())
                for at in () if come() else ended():
                    del following[at]

    def release(self, step: int) -> None:
        """Return the operator's credit, now or together with later ones."""
        self._released = step - self._lag
        self._owe()

    def _owe(self) -> None:
        self._pending += 1
        if self._pending >= self._batch:
            self.flush()
        elif not self._put_off:
            self._put_off = True
            self._mail.put_off(self)

    def release_stream(self, step: int) -> None:
        """As `release`, for a streamed value: chunks that the operator left are skipped."""
        made = step - self._lag
        self.await_all(step)
        if made in self._given:
            del self._given[made]
        else:
            self.state.take(made)
        self.release(step)

    def end(self, step: int) -> None:
        """Note that `step` was the last one."""

    def flush(self) -> None:
        """Tell the producers the step up to which everything is released."""
        self._put_off = False
        if self._pending:
            self._pending = 0
            mail = self._mail
            for role, rank in self._peers:
                if mail.generation(role, rank) >= 0:  # else the ask tells it, once it is known
                    mail.release(role, rank, self.edge.id, self._released)

    def _wait_ready(self, made: int) -> None:
        ready = self.state.ready
        self._wait_until(lambda: ready(made))

    def _wait_chunk(self, made: int, position: int, index: int) -> Arrival | None:
        state = self.state
        item = state.chunk(made, position, index)
        if item is not None or state.ended(made, position):
            return item
        self._wait_until(lambda: state.chunk(made, position, index) is not None or state.ended(made, position))
        return state.chunk(made, position, index)

    def _wait_until(self, there: Callable[[], object]) -> None:
        """Wait until `there()`, for chunks on the edge."""
        self._until(there, WAITING, self.edge.id)
