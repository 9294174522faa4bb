"""Ranks far ahead of others, and a disk that is slower than snapshots come: checkpoints become whole all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh_checkpoint.persisting import outlasting

Rule = Callable[[Sequence[int]], int | None]


class Rank:
    """A rank, one step a tick, that writes one snapshot at a time: each takes `disk` ticks."""

    def __init__(self, lead: int, disk: int, rule: Rule) -> None:
        self.at, self._disk, self._rule = lead, disk, rule
        self._waiting: set[int] = set()
        self._writing, self._left = -1, 0
        self.written: set[int] = set()

    def tick(self, every: int) -> None:
        self.at += 1
        if (self.at + 1) % every == 0:
            queued = self._waiting - {self._writing} - self.written
            self._waiting &= {self._writing, self._rule(sorted(queued))} | self.written
            self._waiting.add(self.at)
        if self._left:
            self._left -= 1
            if not self._left:
                self.written.add(self._writing)
        todo = sorted(self._waiting - self.written)
        if not self._left and todo:
            self._writing, self._left = todo[0], self._disk


def whole(leads: list[int], disks: list[int], every: int, ticks: int, rule: Rule) -> list[int]:
    """The ticks at which another checkpoint became whole."""
    ranks = [Rank(lead, disk, rule) for lead, disk in zip(leads, disks, strict=True)]
    newest, found = -1, []
    for tick in range(ticks):
        for rank in ranks:
            rank.tick(every)
        step = max(set.intersection(*(rank.written for rank in ranks)), default=-1)
        if step > newest:
            newest = step
            found.append(tick)
    return found


SLOW = {"leads": [0, 37], "disks": [24, 24], "every": 5}


def test_checkpoints_become_whole_where_the_newest_of_each_rank_never_match() -> None:
    assert whole(**SLOW, ticks=4000, rule=lambda steps: max(steps, default=None)) == []
    assert len(whole(**SLOW, ticks=4000, rule=outlasting)) >= 4000 // (8 * 37)


@settings(deadline=None, max_examples=25)
@given(leads=st.lists(st.integers(0, 90), min_size=2, max_size=4), disk=st.integers(1, 30), every=st.integers(1, 10))
def test_never_long_without_one(leads: list[int], disk: int, every: int) -> None:
    longest = 16 * (max(leads) + disk + every)
    at = [0, *whole(leads, [disk] * len(leads), every, 2 * longest, outlasting)]
    assert max(b - a for a, b in zip(at, [*at[1:], 2 * longest], strict=True)) <= longest


@pytest.mark.parametrize(("steps", "stays"), [((), None), ((4,), 4), ((4, 9), 9), ((9, 14), 9), ((39, 59, 54), 39)])
def test_the_step_that_more_powers_of_two_divide(steps: tuple[int, ...], stays: int | None) -> None:
    assert outlasting(steps) == stays
