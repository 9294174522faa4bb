"""The record of a run, by rank and node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_recorder.lines import Account, Head, Life, Line, Stretch
from rolemesh_recorder.reading import read_record

__all__ = ["Lane", "lanes", "last_moment", "split"]

LATEST = 1 << 62


class Lane(NamedTuple):
    """The record of a rank on one node."""

    ref: RankRef
    node: str
    heads: list[Head]
    lives: list[Life]
    spans: list[Stretch]
    accounts: list[Account]

    def begin(self) -> int:
        """Return the first time in the lane, in µs since 1970."""
        return min((line.t for lines in (self.lives, self.spans, self.accounts) for line in lines[:1]), default=LATEST)


def lanes(
    run_dir: Path, ranks: Sequence[RankRef], since: int, watched: Callable[[Iterable[RankRef]], Iterable[RankRef]]
) -> list[Lane]:
    """Return the lanes of `ranks`, without what had ended at `since`, in µs since 1970.

    `watched` returns the ranks one by one, and shows the progress.
    """
    return [
        lane for ref in watched(ranks) for lane in split(ref, read_record(run_dir, ref.role, ref.rank, since), since)
    ]


def last_moment(run_dir: Path, ranks: Collection[RankRef]) -> int:
    """Return the end of the latest record, in µs since 1970; 0 if there is none."""
    ends = (
        line.t + line.d
        for ref in ranks
        for line in read_record(run_dir, ref.role, ref.rank, LATEST)
        if isinstance(line, Account)
    )
    return max(ends, default=0)


def split(ref: RankRef, lines: Iterable[Line], since: int) -> Iterator[Lane]:
    """Yield the lanes of one rank. Pure. Lines before the first head, as of a damaged record, have the node ""."""
    found: dict[str, Lane] = {}
    lane = _lane(found, ref, "")
    for line in lines:
        if isinstance(line, Head):
            lane = _lane(found, ref, line.node)
            lane.heads.append(line)
        elif line.t + line.d <= since or line.d < 0 or line.t < 0 or line.t + line.d > LATEST // 1000:
            continue
        elif isinstance(line, Stretch):
            lane.spans.append(line)
        elif isinstance(line, Account):
            lane.accounts.append(line)
        else:
            lane.lives.append(line)
    yield from (each for each in found.values() if each.begin() < LATEST)


def _lane(found: dict[str, Lane], ref: RankRef, node: str) -> Lane:
    return found.setdefault(node, Lane(ref, node, [], [], [], []))
