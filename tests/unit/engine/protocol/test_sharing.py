"""The sharing of items among ranks: each item once if messages arrive at once, and at least once after any kill."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rolemesh_durable.extensions.sharing.states import SharingState
from rolemesh_durable.protocol.delivery.items import ItemsIn


def introduce(ranks: list[SharingState]) -> None:
    """Everybody asks everybody."""
    for me, mine in enumerate(ranks):
        for mate, theirs in enumerate(ranks):
            if mate != me:
                for step, item in theirs.asked(me, 0, mine.first):
                    mine.heard(mate, 0, step, item)
                mine.told(mate, 0)


def tell(ranks: list[SharingState], me: int, step: int, item: int) -> None:
    for mate in ranks[me].listeners:
        ranks[mate].heard(me, 0, step, item)


@pytest.mark.parametrize(("size", "count"), [(1, 5), (2, 1), (3, 7), (4, 3), (4, 32), (5, 0)])
def test_every_item_is_taken_once(size: int, count: int) -> None:
    rng = random.Random(size * 100 + count)
    ranks = [SharingState(rank, size) for rank in range(size)]
    introduce(ranks)
    assert all(rank.informed for rank in ranks)
    through: set[int] = set()
    taken: list[int] = []
    while len(through) < size:
        me = rng.choice([rank for rank in range(size) if rank not in through])
        item = ranks[me].take(0, count)
        if item is None:
            through.add(me)
        else:
            taken.append(item)
            tell(ranks, me, 0, item)
    assert sorted(taken) == list(range(count))


def test_a_rank_takes_its_own_section_from_the_front_and_then_the_richest_from_the_back() -> None:
    me = SharingState(1, 3)
    assert [me.take(0, 9) for _ in range(3)] == [3, 4, 5]
    me.heard(0, 0, 0, 0)
    assert [me.take(0, 9) for _ in range(6)] == [8, 7, 2, 6, 1, None]


def test_an_item_of_a_mates_section_is_one_that_the_mate_may_be_taking() -> None:
    me = SharingState(1, 2)
    collide = []
    for _ in range(4):
        collide.append(me.may_collide(0, 4))
        me.take(0, 4)
    assert collide == [False, False, True, True]
    assert not me.may_collide(0, 4)
    assert SharingState(0, 2).may_collide(0, 1)


def test_two_ranks_that_take_an_item_at_the_same_moment_both_do_it() -> None:
    ranks = [SharingState(rank, 2) for rank in range(2)]
    introduce(ranks)
    done = Counter(rank.take(0, 2) for rank in ranks for _ in range(2))
    assert done == {0: 2, 1: 2}


def test_a_restarted_rank_is_told_what_its_mates_have_and_what_it_had_is_free() -> None:
    ranks = [SharingState(rank, 2) for rank in range(2)]
    introduce(ranks)
    for me, count in ((0, 2), (1, 1)):
        for _ in range(count):
            item = ranks[me].take(3, 6)
            assert item is not None
            tell(ranks, me, 3, item)
    again = SharingState(0, 2, resume=2)
    assert again.first == 3
    assert not again.informed
    ranks[1].restarted(0, 1)
    assert ranks[1].listeners == ()
    told = ranks[1].asked(0, 1, again.first)
    assert told == [(3, 3)]
    for step, item in told:
        again.heard(1, 0, step, item)
    again.told(1, 0)
    assert again.informed
    ranks[1].heard(0, 0, 3, 2)  # of the dead generation, late
    assert [ranks[1].take(3, 6) for _ in range(6)] == [4, 5, 2, 1, 0, None]
    assert again.take(3, 6) == 0


def test_a_living_mate_learns_which_items_the_new_generation_takes() -> None:
    ranks = [SharingState(rank, 2) for rank in range(2)]
    introduce(ranks)
    again = SharingState(0, 2, resume=2)
    again.remember(3, [0])  # the log has what a former generation made of it
    ranks[1].asked(0, 1, again.first)
    assert again.told(1, 0) == [(3, 0)]
    assert again.listeners == (1,)
    assert again.told(1, 0) == []
    again.restarted(1, 1)
    assert again.listeners == ()
    assert again.asked(1, 1, 4) == []
    assert again.told(1, 0) == []  # of the dead generation, late
    assert again.listeners == (1,)


def test_committed_steps_are_forgotten() -> None:
    me = SharingState(0, 2)
    assert me.take(0, 2) == 0
    assert me.take(1, 2) == 0
    me.committed(0)
    assert me.asked(1, 0, 0) == [(1, 0)]


def test_living_ranks_know_every_taken_item_despite_kills() -> None:
    """Without a consumer: ranks take and are restored to any step that they are through with, or the one before."""
    for seed in range(300):
        rng = random.Random(seed)
        size, count, steps = rng.randint(2, 4), rng.randint(1, 6), 3
        ranks = [SharingState(rank, size) for rank in range(size)]
        generations = [0] * size
        introduce(ranks)
        parts: list[dict[int, set[int]]] = [{} for _ in range(size)]
        at = [0] * size
        words: list[tuple[int, int, int, int, int]] = []
        kills = 6
        while min(at) < steps:
            me = rng.randrange(size)
            if kills and rng.random() < 0.1:
                kills -= 1
                resume = rng.randint(-1, at[me] - 1)
                parts[me] = {step: part for step, part in parts[me].items() if step <= resume}
                generations[me] += 1
                at[me], ranks[me] = resume + 1, SharingState(me, size, resume)
                words = [word for word in words if word[1] != me]
                for mate in range(size):
                    if mate != me:
                        for step, item in ranks[mate].asked(me, generations[me], resume + 1):
                            ranks[me].heard(mate, generations[mate], step, item)
                        assert ranks[me].told(mate, generations[mate]) == []
            elif words and rng.random() < 0.5:
                way = rng.choice(words)[:2]  # words of one rank to another do not overtake each other
                word = next(word for word in words if word[:2] == way)
                words.remove(word)
                src, dst, generation, step, item = word
                ranks[dst].heard(src, generation, step, item)
            elif at[me] < steps:
                item = ranks[me].take(at[me], count)
                if item is None:
                    parts[me].setdefault(at[me], set())
                    at[me] += 1
                else:
                    parts[me].setdefault(at[me], set()).add(item)
                    words += [(me, mate, generations[me], at[me], item) for mate in ranks[me].listeners]
        for step in range(steps):
            assert set().union(*(part[step] for part in parts)) == set(range(count)), seed


def test_a_consumer_asks_a_restarted_source_again_for_all_that_it_has_not_used() -> None:
    port: ItemsIn[str] = ItemsIn((0, 1))
    for step in range(3):
        assert port.accept(0, 0, step, 0, False, f"a{step}")
        assert port.accept(0, 0, step, 1, True, None)
        assert port.accept(1, 0, step, 0, True, None)
    assert port.take(0) == [["a0"], []]
    assert port.restart_source(0, 1) == 1
    assert not port.ready(1)
    assert not port.accept(0, 0, 2, 0, True, "late")
    assert port.accept(0, 1, 1, 0, True, "b1")
    assert port.ready(1)
    assert port.peek(1) == [["b1"], []]
    assert not port.ready(2)
    assert port.restart_source(0, 1) == 2


def test_a_rank_that_steals_nothing_takes_its_own_section_only() -> None:
    me = SharingState(1, 3, steals=False)
    assert [me.take(0, 9) for _ in range(4)] == [3, 4, 5, None]
    assert not me.may_collide(0, 9)


@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 5), (4, 3)])
def test_the_sections_of_all_ranks_are_all_items_once(size, count):
    sections = [SharingState(rank, size).section(count) for rank in range(size)]
    assert [item for section in sections for item in section] == list(range(count))
