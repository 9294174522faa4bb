"""Lines of metrics of several ranks, added up: an agent adds those of its ranks, the master those of agents. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

from rolemesh.api.observer import StepMetrics
from rolemesh.graph.logical import LogicalGraph
from rolemesh_durable.protocol.metrics.item_reports import has_all_items, settled
from rolemesh_runtime.metrics import LineBuilder, Metrics, joined

__all__ = ["LineAssembler", "MetricsMerger"]

T = TypeVar("T")


class MetricsMerger:
    """Adds up the lines of the ranks of each role on one node. A line is complete when all of them have sent theirs.

    It keeps the ranks' lines until these are durable (`forget`). So it can send lines again, and add them up again when
    a rank comes to this node or leaves it.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, set[int]] = {}
        self._parts: dict[str, dict[int, dict[int, Metrics]]] = {}
        """The ranks' lines by role, last step of the line, and rank."""
        self._whole: dict[str, dict[int, Metrics]] = {}
        """The complete lines that `take` has returned, by role and last step."""
        self._changed: set[tuple[str, int]] = set()
        """The lines that have changed since the last `take`."""
        self.durable = -1
        """Lines up to this step are durable."""

    @property
    def pending(self) -> bool:
        """True if something has changed since the last `take`."""
        return bool(self._changed)

    def expect(self, role: str, rank: int) -> None:
        """Lines of `role` need this rank too, also those that were complete without it."""
        self._ranks.setdefault(role, set()).add(rank)
        self._whole.pop(role, None)

    def leave(self, role: str, rank: int) -> None:
        """The process of this rank has ended. Its successor sends its lines again, maybe on another node."""
        self._ranks.get(role, set()).discard(rank)
        gone = [(step, parts) for step, parts in self._parts.get(role, {}).items() if parts.pop(rank, None)]
        if gone:
            self._whole.pop(role, None)
            self._changed.update((role, step) for step, parts in gone if parts)

    def add(self, rank: int, lines: Iterable[Metrics]) -> None:
        """Take the lines of one rank. Lines of a rank that has left are too late."""
        for line in lines:
            role, step = line.role, line.step
            if step > self.durable and rank in self._ranks.get(role, ()):
                self._parts.setdefault(role, {}).setdefault(step, {})[rank] = line
                self._whole.get(role, {}).pop(step, None)
                self._changed.add((role, step))

    def take(self) -> tuple[Metrics, ...]:
        """Return the lines that have become complete since the last call."""
        new: list[Metrics] = []
        for role, step in sorted(self._changed):
            ranks, parts = self._ranks.get(role, set()), self._parts.get(role, {}).get(step, {})
            if parts and parts.keys() >= ranks:
                line = joined([parts[rank] for rank in sorted(parts)])
                self._whole.setdefault(role, {})[step] = line
                new.append(line)
        self._changed.clear()
        return tuple(new)

    def lines(self) -> tuple[Metrics, ...]:
        """Return all complete lines that are not known to be durable."""
        self._changed.update((role, step) for role, parts in self._parts.items() for step in parts)
        return self.take()

    @property
    def last(self) -> int:
        """The step of the last line that `take` has returned and that may not be durable; -1: all are."""
        return max((step for whole in self._whole.values() for step in whole), default=-1)

    def forget(self, step: int) -> None:
        """Lines up to `step` are durable."""
        if step > self.durable:
            self.durable = step
            self._parts = {role: _after(step, parts) for role, parts in self._parts.items()}
            self._whole = {role: _after(step, whole) for role, whole in self._whole.items()}


def _after(step: int, lines: Mapping[int, T]) -> dict[int, T]:
    return {at: line for at, line in lines.items() if at > step}


PATIENCE_S = 10.0
"""Seconds that the master waits for missing parts of a line whose steps are committed.

The parts may have died with their agent.
"""


class LineAssembler:
    """Builds the lines of ``metrics.jsonl`` from the roles' parts, in step order, each once."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int], published: int = -1) -> None:
        """`published`: lines up to this step have been built before."""
        self._graph, self._world_sizes = graph, dict(world_sizes)
        self._builder = LineBuilder(graph, world_sizes)
        self._parts: defaultdict[int, dict[tuple[str, str], Metrics]] = defaultdict(dict)
        """The parts, by the last step of the line, role and agent."""
        self._since: list[tuple[int, float]] = []
        """Pairs (step, time): when the master first knew that the steps up to this one are committed."""
        self._unsettled = 0.0
        self._here: Counter[tuple[str, str]] = Counter()
        self.published = published

    def written(self, step: int) -> None:
        """Lines up to `step` are on disk: an earlier master may have written some of them late."""
        if step > self.published:
            self.published = step
            self._forget(at for at in self._parts if at <= step)

    def resized(self, world_sizes: Mapping[str, int]) -> None:
        """All lines from now on are of a new layout: the parts that earlier ranks have sent do not count."""
        self._parts.clear()
        self._since.clear()
        self._world_sizes, self._builder = dict(world_sizes), LineBuilder(self._graph, world_sizes)

    def rolled_back(self, step: int) -> None:
        """The whole job goes back to `step`. Its ranks make later lines again, so no line has parts of both times."""
        self._forget(at for at in self._parts if not self.published < at <= step)
        self._since.clear()

    def unsettled(self, now: float) -> None:
        """Note that ranks, or the agent of some, start again. They send the missing parts, however long that takes."""
        self._unsettled = now

    def moved(self, homes: Iterable[tuple[str, str]]) -> None:
        """Note that ranks have moved: `homes` has the role and agent of each rank.

        A rank that has moved sends its new agent all lines that are not durable. An agent with fewer ranks than before
        sends its lines again without the ranks that have left.
        """
        before, self._here, sizes = self._here, Counter(homes), self._world_sizes
        sources = {source for parts in self._parts.values() for source in parts}
        gone = [source for source in sources if self._here[source] < before.get(source, sizes[source[0]])]
        for parts in self._parts.values():
            for source in gone:
                parts.pop(source, None)
        self._forget(at for at, parts in self._parts.items() if not parts)

    def add(
        self, agent: str, lines: Iterable[Metrics], now: float, committed: int = -1, *, wall: float, hold: bool = False
    ) -> list[StepMetrics]:
        """Take an agent's parts. Return the lines that are complete now; with `hold` none, as they come later.

        `now` (seconds of any monotonic clock) measures the wait of a line; `wall` is written into the lines. A part
        replaces an earlier one of this agent with fewer ranks. A line up to `committed` is built without a part, or the
        report of an item, that has not come within `PATIENCE_S` although every rank is in its place.
        """
        for part in lines:
            source = part.role, agent
            if self._here and part.ranks > self._here[source]:
                continue  # it was in flight when some of its ranks moved
            if part.step > self.published:
                known = self._parts[part.step].get(source)
                if known is None or known.ranks <= part.ranks:
                    self._parts[part.step][source] = part
        late = self._late(committed, now)
        return [] if hold else self._lines(late, wall)

    def ended(self, committed: int, *, wall: float) -> list[StepMetrics]:
        """Return the lines that are left at the end: those up to `committed` also without the parts of dead ranks."""
        return self._lines(min(committed, self._last), wall)

    @property
    def _last(self) -> int:
        return max(self._parts, default=-1)

    def _forget(self, steps: Iterable[int]) -> None:
        for step in list(steps):
            del self._parts[step]

    def _lines(self, late: int, wall: float) -> list[StepMetrics]:
        """Return the lines that are complete now, and those up to step `late` that are not."""
        done: list[StepMetrics] = []
        for step in sorted(self._parts):
            found = self._parts[step]
            if step > late and not (self._is_whole(found) and has_all_items(found.values())):
                break
            done.append(self._built(found, wall))
            self.published = step
            del self._parts[step]
        return done

    def _late(self, committed: int, now: float) -> int:
        """Return the step up to which lines have waited for long enough."""
        known = min(committed, self._last)
        # Not since the first part: the slowest rank of a step may take minutes more, and commits it when it comes.
        self._since = [(step, since) for step, since in self._since if step > self.published]
        if known > (self._since[-1][0] if self._since else self.published):
            self._since.append((known, now))
        return max((at for at, since in self._since if now > max(since, self._unsettled) + PATIENCE_S), default=-1)

    def _is_whole(self, found: Mapping[tuple[str, str], Metrics]) -> bool:
        """Return True if this is the next line, with the parts of all ranks."""
        # A report may be lost, or overtaken: then the lines before this one are still to come.
        if all(part.step - part.steps > self.published for part in found.values()):
            return False
        counts = dict.fromkeys(self._world_sizes, 0)
        for part in found.values():
            counts[part.role] += part.ranks
        return all(count >= self._world_sizes[role] for role, count in counts.items())

    def _built(self, found: Mapping[tuple[str, str], Metrics], wall: float) -> StepMetrics:
        """Return the line of these parts."""
        parts: dict[str, list[Metrics]] = {}
        for role, agent in sorted(found):
            parts.setdefault(role, []).append(found[role, agent])
        return self._builder.build({role: settled(each) for role, each in parts.items()}, wall)
