"""Lines of metrics column by column: how they travel and wait, since steps may be quicker than anybody handles a line.

A block has the numbers of each of its lines; what it saves is an object, and everything done to it, per line.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import add, attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from rolemesh.runs.metrics import Metrics

__all__ = ["Block", "Tracks", "lines_of", "merged", "packed", "rows_of"]

S = TypeVar("S")
LAST: Final = 1 << 62
"""After every step."""


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Lines of one role that follow each other, summed over `ranks` ranks. A line covers the steps from where the one
    before it ends; the first those after `begin`.

    `ends`, `times` (computing, waiting, blocked), `means` (label → name → sums and counts) and `sums` (label → name →
    sums) have an entry per line. A name that no line from some line on has need have none for these; what a line lacks
    is a count of 0, or None. `records` are by the step at which a line ends.
    """

    role: str
    ranks: int
    begin: int
    ends: list[int]
    times: tuple[list[float], list[float], list[float]]
    means: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    sums: dict[str, dict[str, list[float | None]]] = {}
    records: dict[int, dict[str, Any]] = {}

    @property
    def first(self) -> int:
        """The step at which the first line ends."""
        return self.ends[0]

    @property
    def last(self) -> int:
        """The step at which the last line ends."""
        return self.ends[-1]

    @property
    def bare(self) -> bool:
        """Whether its lines have nothing but times."""
        return not (self.means or self.sums or self.records)

    def append(self, step: int, computing: float, waiting: float, blocked: float) -> None:
        """One more line, which ends with `step`: the role's times in it, in seconds."""
        self.ends.append(step)
        times = self.times
        times[0].append(computing)
        times[1].append(waiting)
        times[2].append(blocked)

    def note(self, line: Metrics) -> None:
        """What else there is in `line`, the one that was appended last."""
        at = len(self.ends) - 1
        for label, means in line.means.items():
            names = self.means.setdefault(label, {})
            for name, (amount, count) in means.items():
                amounts, counts = names.setdefault(name, ([], []))
                amounts += [0.0] * (at - len(counts)) + [amount]
                counts += [0.0] * (at - len(counts)) + [count]
        for label, sums in line.sums.items():
            columns = self.sums.setdefault(label, {})
            for name, total in sums.items():
                column = columns.setdefault(name, [])
                column += [None] * (at - len(column)) + [total]
        if line.records:
            self.records[self.last] = line.records

    def between(self, after: int, upto: int) -> Block | None:
        """The lines that end after step `after`, and not after `upto`; None if there are none."""
        ends = self.ends
        if after < ends[0] and ends[-1] <= upto:
            return self
        i, j = bisect_right(ends, after), bisect_right(ends, upto)
        if i >= j:
            return None
        computing, waiting, blocked = self.times
        return Block(
            self.role,
            self.ranks,
            ends[i - 1] if i else self.begin,
            ends[i:j],
            (computing[i:j], waiting[i:j], blocked[i:j]),
            {
                label: {name: (amounts[i:j], counts[i:j]) for name, (amounts, counts) in names.items()}
                for label, names in self.means.items()
            },
            {label: {name: sums[i:j] for name, sums in names.items()} for label, names in self.sums.items()},
            {step: said for step, said in self.records.items() if after < step <= upto},
        )


def packed(lines: Iterable[Metrics]) -> list[Block]:
    """`lines` in their order, as blocks: a new one wherever a line does not follow the one before."""
    blocks: list[Block] = []
    for line in lines:
        block = blocks[-1] if blocks else None
        before = line.step - line.steps
        if block is None or before != block.last or line.role != block.role or line.ranks != block.ranks:
            block = Block(line.role, line.ranks, before, [], ([], [], []))
            blocks.append(block)
        block.append(line.step, *line.times)
        if line.means or line.sums or line.records:
            block.note(line)
    return blocks


def lines_of(block: Block) -> Iterator[Metrics]:
    """The lines of a block, in their order."""
    role, ranks, before, bare = block.role, block.ranks, block.begin, block.bare
    for at, (step, computing, waiting, blocked) in enumerate(zip(block.ends, *block.times, strict=True)):
        times = [computing, waiting, blocked]
        if bare:
            yield Metrics(role, step, step - before, ranks, times)
        else:
            means = {
                label: {name: [a[at], n[at]] for name, (a, n) in names.items() if at < len(n) and n[at]}
                for label, names in block.means.items()
            }
            sums = {
                label: {name: total for name, column in names.items() if (total := _at(column, at)) is not None}
                for label, names in block.sums.items()
            }
            yield Metrics(role, step, step - before, ranks, times, means, sums, block.records.get(step, {}))
        before = step


def rows_of(blocks: Sequence[Block]) -> Iterable[Sequence[Metrics]]:
    """Line by line, in order, what `blocks` have of it."""
    if all(block.ends == blocks[0].ends for block in blocks):
        return zip(*map(lines_of, blocks), strict=True)
    rows: dict[int, list[Metrics]] = {}
    for block in blocks:
        for line in lines_of(block):
            rows.setdefault(line.step, []).append(line)
    return [rows[step] for step in sorted(rows)]


def merged(blocks: Sequence[Block]) -> Block:
    """The same lines as several sources have them, as theirs together: `rolemesh.runs.metrics.joined`, by columns."""
    first = blocks[0]
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    means: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    sums: dict[str, dict[str, list[float | None]]] = {}
    records: dict[int, dict[str, Any]] = {}
    for block in blocks:
        for total, column in zip(times, block.times, strict=True):
            _add(total, column)
        for label, names in block.means.items():
            for name, columns in names.items():
                for total, column in zip(means.setdefault(label, {}).setdefault(name, ([], [])), columns, strict=True):
                    _add(total, column)
        for label, sums_of in block.sums.items():
            for name, values in sums_of.items():
                known = sums.setdefault(label, {}).setdefault(name, [])
                known += [None] * (len(values) - len(known))
                known[: len(values)] = map(_plus, known, values)
        for step, said in block.records.items():
            records[step] = said | records.get(step, {})
    ranks = sum(block.ranks for block in blocks)
    return Block(first.role, ranks, first.begin, first.ends, times, means, sums, records)


def _add(total: list[float], column: list[float]) -> None:
    """Entry by entry; the shorter has zeros at its end."""
    total += [0.0] * (len(column) - len(total))
    total[: len(column)] = map(add, total, column)


def _plus(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else a + b


def _at(column: list[float | None], at: int) -> float | None:
    return column[at] if at < len(column) else None


def _parts(blocks: Iterable[Block], after: int, upto: int) -> list[Block]:
    return [part for block in blocks if (part := block.between(after, upto)) is not None]


def _all_in(ends: list[int], others: list[int]) -> bool:
    at = bisect_left(others, ends[0])
    return ends == others[at : at + len(ends)]


class Tracks(Generic[S]):
    """What several sources have said of the same lines: blocks by source, in order, which do not overlap."""

    def __init__(self) -> None:
        self._tracks: dict[S, list[Block]] = {}

    def __iter__(self) -> Iterator[S]:
        return iter(self._tracks)

    @property
    def last(self) -> int:
        """The step at which the last line ends of which something is known; -1 if nothing is."""
        return max((track[-1].last for track in self._tracks.values()), default=-1)

    def known(self, sources: Collection[S]) -> int:
        """Up to this step each of `sources` has said something, of some line or other; -1 if one has said nothing."""
        tracks = self._tracks
        return min((tracks[source][-1].last if source in tracks else -1 for source in sources), default=-1)

    def add(self, source: S, block: Block) -> None:
        """Take a block. Where `source` has said these lines already, the newer ones count, unless they are of fewer
        ranks."""
        track = self._tracks.setdefault(source, [])
        if not track or track[-1].last < block.first:
            track.append(block)
            return
        same = _parts(track, block.first - 1, block.last)
        if all(known.ranks <= block.ranks and _all_in(known.ends, block.ends) for known in same):
            track[:] = [*_parts(track, -1, block.first - 1), block, *_parts(track, block.last, LAST)]
        else:
            lines = {line.step: line for known in track for line in lines_of(known)}
            for line in lines_of(block):
                if line.step not in lines or line.ranks >= lines[line.step].ranks:
                    lines[line.step] = line
            track[:] = packed(lines[at] for at in sorted(lines))

    def keep(self, after: int, upto: int = LAST) -> None:
        """Forget all but the lines that end after step `after`, and not after `upto`."""
        for source, track in list(self._tracks.items()):
            track[:] = _parts(track, after, upto)
            if not track:
                del self._tracks[source]

    def drop(self, sources: Collection[S]) -> bool:
        """Forget what `sources` have said; whether there was anything."""
        gone = [self._tracks.pop(source, None) for source in sources]
        return any(gone)

    def stretches(self, after: int = -1) -> Iterator[dict[S, Block]]:
        """What is known of the lines that end after step `after`, in their order: as many at a time as the same
        sources have."""
        last = attrgetter("last")
        new = ((source, track[bisect_right(track, after, key=last) :]) for source, track in self._tracks.items())
        rest = {source: blocks[::-1] for source, blocks in new if blocks}
        while rest:
            first = min(blocks[-1].first for blocks in rest.values())
            upto = min(b[-1].last if b[-1].first == first else b[-1].first - 1 for b in rest.values())
            found: dict[S, Block] = {}
            for source, blocks in list(rest.items()):
                if blocks[-1].first == first:
                    block = blocks.pop()
                    if (now := block.between(after, upto)) is not None:
                        found[source] = now
                    if (later := block.between(upto, LAST)) is not None:
                        blocks.append(later)
                    elif not blocks:
                        del rest[source]
            if found:
                yield found
