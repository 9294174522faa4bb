"""Metrics of several ranks merged into one: agents merge a node's ranks, the master merges agents. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rolemesh.api.observer import RoleTimes, StepMetrics
from rolemesh.graph.logical import LogicalGraph
from rolemesh.runs.metrics import LineBuilder, Metrics, joined
from rolemesh_durable.protocol.blocks import LAST, Block, Tracks, lines_of, merged, packed, rows_of
from rolemesh_durable.protocol.item_reports import reported_upto, settled

__all__ = ["LineAssembler", "MetricsMerger"]


class MetricsMerger:
    """Joins the lines of the ranks of each role on one node; a line is complete when all of them have sent theirs.

    Lines are kept rank by rank until they are known to be durable (`forget`), so that they can be sent again, and be
    joined again when ranks come here or leave.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, set[int]] = {}
        self._tracks: dict[str, Tracks[int]] = {}
        self._whole: dict[str, list[Block]] = {}
        """What has been taken and is not known to be durable, joined once: there may be many ranks, and a slow disk."""
        self.durable = -1
        """Lines up to this step are durable."""
        self.pending = False
        """Something has come that has not been taken yet."""

    def expect(self, role: str, rank: int) -> None:
        """Lines of `role` need this rank too, also those that were complete without it."""
        self._ranks.setdefault(role, set()).add(rank)
        self._whole.pop(role, None)

    def leave(self, role: str, rank: int) -> None:
        """This rank's process is over: what it has told will be told by its successor, maybe elsewhere."""
        self._ranks.get(role, set()).discard(rank)
        if role in self._tracks and self._tracks[role].drop({rank}):
            self._whole.pop(role, None)
            self.pending = True

    def add(self, rank: int, blocks: Iterable[Block]) -> None:
        """Take the lines of one rank; of one that has left they come too late."""
        for block in blocks:
            if rank in self._ranks.get(block.role, ()) and (new := block.between(self.durable, block.last)) is not None:
                self._tracks.setdefault(new.role, Tracks()).add(rank, new)
                if self._sent(new.role) >= new.first:
                    self._whole[new.role] = _between(self._whole[new.role], -1, new.first - 1)
                self.pending = True

    def take(self) -> tuple[Block, ...]:
        """The complete lines since the last call."""
        self.pending = False
        return tuple(block for role in self._tracks for block in self._complete(role))

    def lines(self) -> tuple[Block, ...]:
        """All complete lines that are not known to be durable."""
        self.take()
        return tuple(block for blocks in self._whole.values() for block in blocks)

    @property
    def last(self) -> int:
        """The step of the last line that has been taken, and may not be durable; -1: all are."""
        return max(map(self._sent, self._whole), default=-1)

    def _sent(self, role: str) -> int:
        """The step of the last line of `role` that has been taken."""
        return whole[-1].last if (whole := self._whole.get(role)) else -1

    def _complete(self, role: str) -> list[Block]:
        """The lines of `role` that are complete, and have not been taken."""
        ranks, tracks, sent = self._ranks.get(role, set()), self._tracks[role], self._sent(role)
        if ranks and tracks.known(ranks) <= sent:
            return []
        found = [found for found in tracks.stretches(sent) if found.keys() >= ranks]
        new = [block for parts in found for block in _joined([parts[rank] for rank in sorted(parts)])]
        if new:
            self._whole.setdefault(role, []).extend(new)
        return new

    def forget(self, step: int) -> None:
        """Lines up to `step` are durable."""
        if step > self.durable:
            self.durable = step
            for tracks in self._tracks.values():
                tracks.keep(step)
            self._whole = {role: _between(blocks, step, LAST) for role, blocks in self._whole.items()}


def _between(blocks: Iterable[Block], after: int, upto: int) -> list[Block]:
    return [left for block in blocks if (left := block.between(after, upto)) is not None]


def _joined(blocks: list[Block]) -> list[Block]:
    """The lines of several ranks, which end alike, as theirs together."""
    if all(block.ends == blocks[0].ends for block in blocks):
        return [merged(blocks)] if len(blocks) > 1 else blocks
    return packed(joined(parts) for parts in rows_of(blocks) if len(parts) == len(blocks))


PATIENCE_S = 10.0
"""How long a line waits, once its step is committed, for parts that may have died with their agent."""


class LineAssembler:
    """Builds the lines of ``metrics.jsonl`` from the roles' parts, in step order, each once."""

    def __init__(self, graph: LogicalGraph, world_sizes: Mapping[str, int], published: int = -1) -> None:
        """`published`: lines up to this step have been built before."""
        self._graph, self._world_sizes = graph, dict(world_sizes)
        self._builder = LineBuilder(graph, world_sizes)
        self._tracks: Tracks[tuple[str, str]] = Tracks()
        """By role and agent."""
        self._since: list[tuple[int, float]] = []
        """Up to which step it was known when that the steps of which there are parts are committed."""
        self._unsettled = 0.0
        self._here: Counter[tuple[str, str]] = Counter()
        self.published = published

    def written(self, step: int) -> None:
        """Lines up to `step` are on disk: an earlier master may have written some of them late."""
        if step > self.published:
            self.published = step
            self._tracks.keep(step)

    def resized(self, world_sizes: Mapping[str, int]) -> None:
        """All lines from now on are of a new layout: what earlier ranks have told of them is void."""
        self._tracks = Tracks()
        self._since.clear()
        self._world_sizes, self._builder = dict(world_sizes), LineBuilder(self._graph, world_sizes)

    def rolled_back(self, step: int) -> None:
        """The whole job goes back to what it was after `step`: what follows is made again, and no line is of both."""
        self._tracks.keep(self.published, step)
        self._since.clear()

    def unsettled(self, now: float) -> None:
        """Ranks are being brought back: they will send again what is missing, however long it takes."""
        self._unsettled = now

    def moved(self, homes: Iterable[tuple[str, str]]) -> None:
        """Ranks have moved, and these roles' are with these agents now, each rank once: whoever has moved tells its new
        agent all that is open. What agents have told that have fewer now they tell again, without those."""
        before, self._here, sizes = self._here, Counter(homes), self._world_sizes
        self._tracks.drop({s for s in self._tracks if self._here[s] < before.get(s, sizes[s[0]])})

    def add(
        self, agent: str, blocks: Iterable[Block], now: float, committed: int = -1, *, wall: float, hold: bool = False
    ) -> list[StepMetrics]:
        """Take an agent's parts; return the lines that are complete now, or none with `hold`: these come later.

        `now` (seconds of any monotonic clock) decides how long has been waited; `wall` is written into the lines.

        A part takes the place of one of fewer ranks that this agent has sent before. A line up to `committed` is built
        without a part, or the report of an item, that has not come 10 s later, with every rank in its place.
        """
        for block in blocks:
            if self._here and block.ranks > self._here[block.role, agent]:
                continue  # it was under way when ranks that are in it have moved
            if (new := block.between(self.published, block.last)) is not None:
                self._tracks.add((new.role, agent), new)
        late = self._late(committed, now)
        return [] if hold else self._lines(late, wall)

    def ended(self, committed: int, *, wall: float) -> list[StepMetrics]:
        """Return the lines that are left when nothing comes any more: those up to `committed` also without the parts
        of ranks that were killed."""
        return self._lines(min(committed, self._tracks.last), wall)

    def _lines(self, late: int, wall: float) -> list[StepMetrics]:
        """The lines that are complete now, and those up to step `late` that are not."""
        done: list[StepMetrics] = []
        for found in self._tracks.stretches():
            last = max(block.last for block in found.values())
            upto = max(late, min(last, reported_upto(found.values()))) if self._is_whole(found) else late
            done += self._built(found, upto, wall)
            self.published = done[-1].step if done else self.published
            if upto < last:
                break
        if done:
            self._tracks.keep(self.published)
        return done

    def _late(self, committed: int, now: float) -> int:
        """Lines that end up to this step have been waited for long enough."""
        known = min(committed, self._tracks.last)
        # Not since the first part: the slowest rank of a step may take minutes more, and commits it when it comes.
        self._since = [(step, since) for step, since in self._since if step > self.published]
        if known > (self._since[-1][0] if self._since else self.published):
            self._since.append((known, now))
        return max((at for at, since in self._since if now > max(since, self._unsettled) + PATIENCE_S), default=-1)

    def _is_whole(self, found: Mapping[tuple[str, str], Block]) -> bool:
        """Whether these are the next lines, with the parts of all ranks."""
        # A report may be lost, or overtaken: then the lines before this one are still to come.
        if all(block.begin > self.published for block in found.values()):
            return False
        counts = dict.fromkeys(self._world_sizes, 0)
        for (role, _), block in found.items():
            counts[role] += block.ranks
        return all(count >= self._world_sizes[role] for role, count in counts.items())

    def _built(self, found: Mapping[tuple[str, str], Block], upto: int, wall: float) -> list[StepMetrics]:
        """The lines of these parts, as far as they end up to step `upto`."""
        lines: list[StepMetrics] = []
        blocks = [left for block in found.values() if (left := block.between(-1, upto)) is not None]
        if all(block.bare and block.ends == blocks[0].ends for block in blocks):
            return self._bare(blocks, wall) if blocks else lines
        for row in rows_of(blocks):
            parts: dict[str, list[Metrics]] = {}
            for part in row:
                parts.setdefault(part.role, []).append(part)
            lines.append(self._builder.build({role: settled(each) for role, each in parts.items()}, wall))
        return lines

    def _bare(self, blocks: list[Block], wall: float) -> list[StepMetrics]:
        """Lines of times alone, which quick steps have many of: column by column, as `LineBuilder` makes each."""
        by_role: dict[str, list[Block]] = {}
        for block in blocks:
            by_role.setdefault(block.role, []).append(block)
        whole = {role: merged(each) if len(each) > 1 else each[0] for role, each in by_role.items()}
        columns = []
        for role, block in whole.items():
            scale = 1e6 / self._world_sizes[role]
            rounded = ([int(seconds * scale + 0.5) / 1e6 for seconds in column] for column in block.times)
            columns.append(map(RoleTimes, *rounded))
        ends, first = blocks[0].ends, {role: [next(lines_of(block))] for role, block in whole.items()}
        staleness = self._builder.build(first, wall).staleness
        return [
            StepMetrics(step, step - before, wall, {}, {}, dict(zip(whole, times, strict=True)), staleness.copy(), {})
            for step, before, times in zip(ends, (blocks[0].begin, *ends), zip(*columns, strict=True), strict=False)
        ]
