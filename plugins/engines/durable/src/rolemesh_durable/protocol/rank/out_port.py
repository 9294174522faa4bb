"""The producer's end of a call's edges in a rank: waits for credits, encodes once, sends, retains."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from rolemesh.graph.routes import Part, Selection
from rolemesh_durable.protocol.rank.effects import Effects, Item, Log
from rolemesh_durable.protocol.rank.out_edge import OutEdge, free
from rolemesh_durable.protocol.rank.page import BLOCKED
from rolemesh_durable.protocol.rank.records import FormerRecord
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_runtime.values import check_returned, check_yielded

__all__ = ["OutPort", "Room"]

FOREVER = 1 << 62
T = TypeVar("T", bound=Item)


class Room(Protocol):
    """The memory that the rank keeps for its consumers (`rolemesh_durable.protocol.rank.ports.Ports`)."""

    def waits_for_room(self, step: int) -> bool:
        """Return True if a value of `step` must wait for a commit that frees kept values."""


class OutPort(Generic[T]):
    """The producer of an operator call's result: it encodes each distinct part once and sends it to all consumers."""

    def __init__(self, job: JobShape, effects: Effects[T], room: Room) -> None:
        self._job, self._log, self._room = job, effects.log, room
        self._values, self._until = effects.values, effects.waits.until
        self._out_edges: list[OutEdge[T]] = []
        self._groups: dict[Selection, list[tuple[OutEdge[T], tuple[int, ...]]]] = {}
        self.admitted = -1
        """The step whose value needs no more credits."""

    def add(self, out_edge: OutEdge[T]) -> None:
        """Add an edge that starts here."""
        self._out_edges.append(out_edge)
        for selection, consumers in out_edge.sends:
            self._groups.setdefault(selection, []).append((out_edge, consumers))

    def drop(self, edges: Collection[int]) -> None:
        """Drop these edges: no consumer will ask for their kept values."""
        for out_edge in self._out_edges:
            if out_edge.edge.id in edges:
                free(out_edge.state.clear())
        out_edges = [out_edge for out_edge in self._out_edges if out_edge.edge.id not in edges]
        self._out_edges, self._groups = [], {}
        for out_edge in out_edges:
            self.add(out_edge)

    def take_over(self, out_edge: OutEdge[T], item: T | None, record: FormerRecord, *, again: bool) -> None:
        """Keep a chunk that a former generation sent. `again`: after the step that this generation continues from."""
        out_edge.keep(item, record.step, record.chunk, record.last, record.consumers)

    def whole(self, record: FormerRecord) -> None:
        """Note that a former generation made a complete value. The port makes the same value again."""

    def write_again(self, log: Log[T]) -> None:
        """Write the kept chunks to a new log."""
        kept = sorted(
            ((out, each) for out in self._out_edges for each in out.state.kept), key=lambda pair: pair[1].step
        )
        for step, made in groupby(kept, key=lambda two: two[1].step):
            first = log.position
            for out_edge, each in made:
                out_edge.write(log, each.item, step, each.chunk, each.last, each.consumers)
            self._wrote_again(log, step, first)

    def _wrote_again(self, log: Log[T], step: int, first: int) -> None:
        """Mark the chunks of `step` as complete in the log, from position `first` on."""

    def await_credits(self, step: int) -> None:
        """Wait now for the credits of `step`, so that `put` or `put_chunks` will not wait."""
        self._begin(step)
        self.admitted = step

    def put(self, step: int, value: Any) -> None:
        """Send the result of `step` after a wait for credits. Do nothing if no consumer takes it."""
        if self._begin(step):
            check_returned((value,))
            for selection in self._groups:
                self._send(selection, step, 0, True, value)
        self._finish(step)

    def put_chunks(self, step: int, chunks: Iterable[Any], *, maybe_none: bool = False) -> None:
        """Send what is yielded at `step`, each chunk at once.

        Parts of rows are cut from the whole value, so they go last.

        Raises `PluginError` if nothing is yielded, unless `maybe_none` is set: then the port reports that to the
        consumers.
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
        elif not maybe_none:
            check_yielded(count)
        for selection in self._groups if live else ():
            if isinstance(selection, Part):
                self._send(selection, step, 0, True, self._values.join(kept))
            else:
                self._end(selection, step, count)
        self._finish(step)

    def _finish(self, step: int) -> None:
        """Note that the whole result of `step` has been put."""

    def _put(
        self, out_edge: OutEdge[T], item: T | None, step: int, chunk: int, last: bool, consumers: tuple[int, ...]
    ) -> None:
        out_edge.put(item, step, chunk, last, consumers)

    def _begin(self, step: int) -> bool:
        """Wait for the credits of all edges that take the value of `step`. Return True if there are any."""
        live, job = False, self._job
        for out_edge in self._out_edges:
            if not out_edge.always:
                consumed = job.activity.consumed
                out_edge.on = consumed(out_edge.edge, step, job.steps)
                out_edge.beyond = not out_edge.on and self._log is not None and consumed(out_edge.edge, step, FOREVER)
            if out_edge.beyond:
                out_edge.on = live = True
            elif out_edge.on:
                live = True
                if not out_edge.state.credit and step != self.admitted:
                    self._until(partial(out_edge.state.admits, step), BLOCKED, out_edge.edge.id)
        if live and job.retention and step != self.admitted and self._room.waits_for_room(step):
            self._until(lambda: not self._room.waits_for_room(step), BLOCKED)
        return live

    def _send(self, selection: Selection, step: int, chunk: int, last: bool, value: Any) -> None:
        item: T | None = None
        for out_edge, consumers in self._groups[selection]:
            if not out_edge.on:
                continue
            if item is None:
                item = self._values.encode(value, selection)
            self._put(out_edge, item, step, chunk, last, consumers)

    def _end(self, selection: Selection, step: int, chunk: int) -> None:
        for out_edge, consumers in self._groups[selection]:
            if out_edge.on:
                self._put(out_edge, None, step, chunk, True, consumers)
