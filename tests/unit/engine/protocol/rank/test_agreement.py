from __future__ import annotations

from rolemesh_durable.protocol.rank.agreement import NOTHING, Agreement

SHOW = tuple((rank, True) for rank in range(3))


def test_nobody_shows_anything_before_all_have_their_parts() -> None:
    agreement = Agreement(3, generation=0)
    assert [agreement.heard(rank, 7, 1) for rank in (2, 0)] == [(), ()]
    assert agreement.heard(1, 7, 1) == SHOW


def test_parts_of_one_former_generation_count() -> None:
    agreement = Agreement(3, generation=4)
    assert [agreement.heard(rank, 7, vote) for rank, vote in ((0, 3), (1, NOTHING))] == [(), ()]
    assert agreement.heard(2, 7, 3) == SHOW


def test_parts_of_several_generations_are_made_again_by_those_who_have_older_ones() -> None:
    agreement = Agreement(3, generation=4)
    assert [agreement.heard(rank, 7, vote) for rank, vote in ((0, 5), (1, 3))] == [(), ()]
    assert agreement.heard(2, 7, 4) == ((1, False), (2, False))
    assert agreement.heard(1, 7, 5) == ()
    assert agreement.heard(2, 7, 5) == SHOW


def test_a_part_that_is_in_the_log_no_more_does_not_count_though_all_say_so() -> None:
    agreement = Agreement(2, generation=4)
    assert agreement.heard(0, 7, 99) == ()
    assert agreement.heard(1, 7, 99) == ((0, False), (1, False))


def test_calls_do_not_disturb_each_other() -> None:
    agreement = Agreement(2, generation=0)
    assert [agreement.heard(0, 7, 1), agreement.heard(1, 8, 1)] == [(), ()]
    assert agreement.heard(1, 7, 1) == SHOW[:2]
