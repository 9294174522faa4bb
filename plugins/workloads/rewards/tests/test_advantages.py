"""Advantages within groups, against the formulas of the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh_rewards.advantages import AdvantageKind, group, informative


def test_a_group_is_standardised() -> None:
    assert group([1, 2, 3], [7, 7, 7]).tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])


def test_the_kinds_divide_subtract_or_keep() -> None:
    rewards = [0.0, 1.0, 1.0, 2.0]
    assert group(rewards, kind="centered").tolist() == [-1, 0, 0, 1]
    assert group(rewards, kind="none").tolist() == rewards
    assert group(rewards).tolist() == pytest.approx([-(2**0.5), 0, 0, 2**0.5])


@pytest.mark.parametrize("kind", ["group", "centered"])
def test_equal_rewards_have_no_advantage(kind: AdvantageKind) -> None:
    assert group([0.1 + 0.2, 0.3, 0.3], [1, 1, 1], kind).tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-10, 10)), min_size=1))
def test_a_group_is_judged_as_if_it_were_alone(rows: list[tuple[int, float]]) -> None:
    groups, rewards = (np.array(each) for each in zip(*rows, strict=True))
    together = group(rewards, groups)
    for number in set(groups.tolist()):
        np.testing.assert_allclose(together[groups == number], group(rewards[groups == number]), atol=1e-5)


def test_advantages_are_those_of_trl_but_for_the_estimate_of_the_deviation() -> None:
    rewards = np.array([[1.0, 0.0, 0.25, 0.5], [2.0, -1.0, 0.0, 0.0]])
    theirs = (rewards - rewards.mean(1, keepdims=True)) / rewards.std(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(group(rewards.ravel(), np.repeat([0, 1], 4)), theirs.ravel() * (4 / 3) ** 0.5, rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_a_reward_that_is_no_number_counts_nowhere(bad: float | None) -> None:
    assert group([1, bad, 3], [0, 0, 0]).tolist() == [-1, 0, 1]
    assert informative([1, bad, 1, 2], [0, 0, 1, 1]) == 0.5


def test_no_rows_have_no_advantages() -> None:
    assert group([], []).shape == (0,)
    assert informative([], []) == 0
