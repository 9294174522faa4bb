"""Which values are wrong: NaN, infinite ones, and spikes above or below the usual values."""

from __future__ import annotations

import math

import pytest

from rolemesh_debug.replay import WatchedPort
from rolemesh_debug.spikes import Usual, usual, wrong
from rolemesh_debug.watch import Judged, WatchError

LOSSES = [2.0, 2.1, 1.9, 2.0, 2.2, 1.8, 2.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_wrong_without_any_values_before(value: float) -> None:
    assert wrong(value, None, None) == f"is {value}"


def test_a_spike_is_more_deviations_away_than_allowed() -> None:
    before = usual(LOSSES)
    assert before == Usual(2.0, pytest.approx(0.1), 7)
    assert wrong(2.59, before, 6) == ""
    assert wrong(2.61, before, 6).startswith("is 2.61, 6.1 deviations from 2, the median of the last 7 values; 6 are")
    assert wrong(1.39, before, 6)


def test_without_a_limit_or_values_before_every_finite_value_is_right() -> None:
    assert wrong(1e30, usual(LOSSES), None) == ""
    assert wrong(1e30, None, 6) == ""


def test_earlier_spikes_do_not_hide_the_next_one() -> None:
    assert wrong(900.0, usual([*LOSSES, 900.0, 900.0]), 6)


def test_a_metric_that_hardly_moves_may_move_by_a_share_of_its_median() -> None:
    before = usual([5.0] * 20)
    assert wrong(5.2, before, 6) == ""
    assert wrong(5.4, before, 6)


def test_a_metric_that_was_always_0_has_no_spikes() -> None:
    assert wrong(1.0, usual([0.0] * 20), 6) == ""


def test_a_replay_fails_at_the_metric_for_which_the_operator_failed() -> None:
    port = WatchedPort({"loss": Judged(3, Usual(1.0, 0.01, 25), 6.0), "kl": Judged(3, None)})
    port.metric({"loss": 1.05, "kl": 1e9, "other": math.nan}, None)
    for values, said in (({"loss": 99.0}, "loss is 99, 9,800 deviations"), ({"kl": math.nan}, "kl is nan")):
        with pytest.raises(WatchError, match=said):
            port.metric(values, None)
