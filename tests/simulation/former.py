"""The records that a simulated rank takes over from its former generations, and persisted snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.effects import SimItem
from tests.simulation.memory import Decision, Entry
from tests.simulation.model import Value, gather, part_of, value_of

from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.routes import Collate, Combine
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_durable.protocol.rank.origin_values import Assembly, StoredValues
from rolemesh_runtime import items

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["SimFormerLog", "SimFormerMemory", "SimInFlight", "origin_of", "sizes_of"]


class SimRecord(NamedTuple):
    """A record that a former generation has logged."""

    kind: RecordKind
    step: int
    edge: int = -1
    call: int = -1
    scope: str = ""
    generation: int = -1
    chunk: int = 0
    last: bool = True
    consumers: tuple[int, ...] = ()
    body: Any = b""
    item: Any = None


class SimFormerLog:
    """The records of a rank's former generations. Its memory has dropped the orphans already."""

    def __init__(self, rank: SimRank) -> None:
        self._memory, self._key = rank.agent.memory, rank.key
        self._ops = {edge.id: edge.src for edge in rank.job.graph.edges}

    def is_orphan(self, record: SimRecord) -> bool:
        """The memory has dropped them."""
        return False

    def is_whole(self, record: SimRecord) -> bool:
        """Whether the log has all of the call."""
        return self._memory.is_whole(self._key, record.edge, record.step)

    def ours(self) -> Iterator[SimRecord]:
        """The decisions of its calls."""
        decided = self._memory.decisions.get(self._key, {}).values()
        of_log = (entry for entry in self._memory.logs[self._key] if entry.scope)
        found: list[Decision | Entry] = [*decided, *of_log]
        for each in found:
            yield SimRecord(RecordKind.DECISION, each.step, scope=each.scope, body=each.body)

    def records(self) -> Iterator[SimRecord]:
        """The records of values that its calls made."""
        whole = self._memory.whole.get(self._key, {})
        encoded = self._memory.items.get(self._key, {})
        kept = [(edge, step) for edge, step in whole if self._memory.is_whole(self._key, edge, step)]
        for call, step in sorted({(self._ops[edge], step) for edge, step in kept}):
            yield SimRecord(RecordKind.WHOLE, step, call=call, body=encoded.get((call, step), b""))
        for e in list(self._memory.logs[self._key]):
            if not e.scope:
                kind = RecordKind.CHUNK if e.item is not None else RecordKind.END
                made = whole.get((e.edge, e.step), -1)
                yield SimRecord(
                    kind,
                    e.step,
                    e.edge,
                    generation=made,
                    chunk=e.chunk,
                    last=e.last,
                    consumers=e.consumers,
                    item=e.item,
                )


class SimInFlight:
    """A record in a persisted snapshot."""

    def __init__(self, entry: Entry) -> None:
        self.edge, self.step, self.chunk, self.last = entry.edge, entry.step, entry.chunk, entry.last
        self.consumers, self.item = entry.consumers, entry.item
        self.scope, self.hold, self.body = entry.scope, entry.hold, entry.item
        sent = RecordKind.CHUNK if entry.item is not None else RecordKind.END
        self.kind = RecordKind.DECISION if entry.scope else sent

    def value(self) -> Any:
        """The value of the chunk."""
        return self.item


class SimFormerMemory:
    """Items lie where they are logged."""

    def __init__(self, rank: SimRank) -> None:
        self._memory, self._key = rank.agent.memory, rank.key

    def item(self, record: SimRecord) -> SimItem | None:
        """The chunk of a record."""
        return SimItem(record.item)

    def retain(self, record: SimRecord) -> None:
        """It takes no memory."""

    def line(self, record: SimRecord) -> None:
        """Lines are no records."""

    def partial(self, record: SimRecord) -> None:
        """Lines are no records."""

    def free_rest(self) -> None:
        """Nothing is left."""

    def stored(self, record: SimInFlight) -> SimItem:
        """The chunk of a persisted snapshot."""
        return SimItem(record.item)


def origin_of(rank: SimRank, step: int) -> StoredValues:
    """Return the persisted snapshot of `step`, as `rank` sees it."""
    there = rank.world.disk.complete[step]

    def records(role: str, number: int) -> list[SimInFlight]:
        return [SimInFlight(entry) for entry in there[RankRef(role, number)][1]]

    role, number = rank.key
    assembly = Assembly(_gathered, part_of, lambda parts, how: gather([[part] for part in parts]))
    where, size = f"step {step}", rank.shape.sizes[role]
    return StoredValues(rank.job.graph, sizes_of(there), records, assembly, number, size, where=where)


def sizes_of(ranks: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return how many ranks each role has."""
    return Counter(role for role, _ in ranks)


def _gathered(chunks: Sequence[Sequence[Any]], how: Combine) -> Value:
    if isinstance(how, Collate):
        rows = items.assembled(item for part in chunks for item in part)
        return value_of(rows) if rows is not None else Value(0)
    return gather([list(part) for part in chunks])
