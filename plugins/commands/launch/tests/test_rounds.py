"""Rounds: whatever a script's ranks do between two looks, none has to wait for another in the middle of its script."""

from __future__ import annotations

import random
from collections import Counter as Tally

import pytest

import rolemesh_launch.rounds
from rolemesh_launch.rounds import Rounds


class Shared:
    """A store's counters, of all ranks."""

    def __init__(self) -> None:
        self.sums: Tally[str] = Tally()

    def add(self, key: str, amount: int) -> int:
        self.sums[key] += amount
        return self.sums[key]

    def delete_key(self, key: str) -> bool:
        return self.sums.pop(key, None) is not None


@pytest.mark.parametrize("seed", range(50))
def test_ranks_are_a_round_apart_at_most_whatever_their_scripts_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolemesh_launch.rounds, "ROUND_S", 0.0)
    monkeypatch.setattr(rolemesh_launch.rounds, "LOOK_S", 0.0)
    rng = random.Random(seed)
    size = rng.randint(1, 5)
    shared = Shared()
    ranks = [Rounds(shared, size) for _ in range(size)]
    left = [rng.randint(0, 60) for _ in ranks]
    done, over = [0] * size, set[int]()
    while len(over) < size:
        n = rng.randrange(size)
        if left[n]:  # the script goes on: a look, and maybe the round's end
            left[n] -= 1
            if ranks[n].may_end():
                ranks[n].next()
                done[n] += 1
        elif n not in over:
            ranks[n].end()
            over.add(n)
        elif ranks[n].all_here():
            ranks[n].next()
            done[n] += 1
        assert max(done) - min(done) <= 1
        assert len(shared.sums) <= 4, "a store that has served for days is as small as a new one"
    assert all(rank.all_ended() for rank in ranks)


def test_a_round_takes_a_while_and_a_look_costs_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(rolemesh_launch.rounds.time, "monotonic", lambda: now)
    shared = Shared()
    rounds = Rounds(shared, 1)
    now = 0.2
    assert not rounds.may_end()
    assert not shared.sums
    now = 0.3
    assert rounds.may_end()
    rounds.next()
    assert not rounds.may_end()


@pytest.mark.parametrize("seed", range(50))
def test_ranks_that_have_met_have_ended_the_same_rounds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolemesh_launch.rounds, "ROUND_S", 0.0)
    monkeypatch.setattr(rolemesh_launch.rounds, "LOOK_S", 0.0)
    rng = random.Random(seed)
    size = rng.randint(1, 5)
    shared = Shared()
    ranks = [Rounds(shared, size) for _ in range(size)]
    left = [rng.randint(0, 20) for _ in ranks]
    done, met, over = [0] * size, set[int](), set[int]()
    while len(over) < size:
        n = rng.randrange(size)
        if left[n]:
            left[n] -= 1
            ends = ranks[n].may_end()
        elif n not in met:
            met.add(n)
            ranks[n].meet()
            continue
        elif not ranks[n].all_met():
            continue
        else:
            ends = ranks[n].full()
            over |= set() if ends else {n}
        if ends:
            ranks[n].next()
            done[n] += 1
    assert len(set(done)) == 1
