"""Which value a step takes from an edge with a bounded lag."""

from __future__ import annotations

from rolemesh.graph.schedule import Period
from rolemesh_durable.protocol.delivery.newest import NewestChoice


def test_a_step_takes_the_newest_there_is_and_after_a_restart_what_it_took_before() -> None:
    choice = NewestChoice(2, Period())
    assert [choice.choose(step, {0, 1, 2}.__contains__) and choice.made for step in range(1, 6)] == [1, 2, 2, 2, False]
    again = NewestChoice(2, Period(), {3: 1})
    assert again.choose(3, {0, 1, 2, 3}.__contains__)
    assert again.made == 1


def test_a_value_of_another_timeline_would_never_arrive_and_is_not_awaited() -> None:
    """Choices never go back: that is why they are cut by timeline (`SendLog.ours`)."""
    mixed = NewestChoice(4, Period(), {6: 3})
    assert mixed.choose(5, lambda made: True)
    assert mixed.made == 5
    assert not mixed.choose(6, lambda made: True)
