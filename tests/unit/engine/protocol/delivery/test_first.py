"""The delivery `first`: each item once, none too old, the same number in each step. A restart repeats the choice."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from rolemesh.api.partition import Balanced, Split
from rolemesh.graph.logical import Edge
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.delivery.first import First, FirstChoice, Piece, Taken, share_of


@pytest.mark.parametrize("seed", range(40))
def test_each_item_is_taken_once_and_in_time(seed: int) -> None:
    rng = random.Random(seed)
    lag, each, steps, ahead = rng.randint(1, 3), rng.randint(1, 4), 12, rng.randint(1, 3)
    choice, taken, told = FirstChoice(lag), dict[Piece, int](), list[Taken]()
    coming: list[Piece] = []
    made = 0
    for step in range(steps):
        while not choice.choose(step):
            if made < min(steps, choice.released + 1 + lag + ahead):
                coming += [(made, number) for number in range(each)]
                made += 1
            at, number = coming.pop(rng.randrange(len(coming)))
            choice.came(at, number, range(each))
            assert not choice.came(at, number, range(each))
        assert len(choice.took) == each
        for piece in choice.took:
            assert taken.setdefault(piece, step) == step
            assert step - piece[0] <= lag
        told.append(choice.taken)
        if rng.random() < 0.3:
            known = [(at, number) for at in range(made) for number in range(each) if (at, number) not in coming]
            back = rng.randrange(len(told))
            again = {at: each_taken.took for at, each_taken in enumerate(told) if at > back}
            choice = FirstChoice(lag, taken=told[back], again=again)
            rng.shuffle(known)
            for at, number in known:
                choice.came(at, number, range(each))
            for at in range(back + 1, step + 1):
                assert choice.choose(at)
                assert choice.taken == told[at]
    assert len(taken) == steps * each


def test_nothing_that_is_due_is_passed_over() -> None:
    choice = FirstChoice(1)
    for step, number in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1)):
        assert choice.came(step, number, range(2))
    assert choice.choose(0)
    assert choice.took == ((0, 0), (1, 0))
    assert not choice.choose(1)
    assert choice.came(0, 1, range(2))
    assert choice.choose(1)
    assert choice.took == ((0, 1), (1, 1))
    assert choice.released == 1


def test_steps_are_of_one_size() -> None:
    choice = FirstChoice(1)
    choice.came(0, 0, range(2))
    with pytest.raises(ValueError, match="step 1 has 3 items"):
        choice.came(1, 0, range(3))


def test_rows_lie_in_the_order_of_their_producers() -> None:
    assert [share_of(rank, 2, size=2, items=3, total=5) for rank in range(2)] == [range(1), range(1, 3)]
    assert share_of(0, 1, size=1, items=1, total=0) == range(1)
    assert share_of(1, 3, size=1, items=1, total=1) == range(1)


def test_an_item_may_have_several_rows_for_each_that_it_was_made_of() -> None:
    delivery = delivery_of(Edge(0, 0, 1, "rows", Balanced(results=4), Split(), lag=2, newest=True))
    assert isinstance(delivery, First)
    ends: list[Any] = [SimpleNamespace(rank=rank, ranks=2) for rank in range(2)]
    assert [delivery.wanted(end, items=6, total=24) for end in ends] == [range(3), range(3, 6)]
