"""Tests that contents and samples of the buffer do not depend on the number of its ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from rolemesh import Batch, OptionsError, RankContext, RolemeshError
from rolemesh_testing import WorkloadConformance

from rolemesh_fieldkit.replay import ReplayBuffer

COLUMNS = {"n": "int64", "x": "(2,)float32"}


def rows(first: int, last: int) -> Batch:
    n = np.arange(first, last)
    return Batch({"n": n, "x": np.stack([n, -n], axis=1).astype(np.float32), "else": list(n)})


def buffer(rank: int = 0, world_size: int = 1, **options: Any) -> ReplayBuffer:
    made = ReplayBuffer(ReplayBuffer.Options(columns=COLUMNS, **options))
    made.setup(RankContext(role="replay", rank=rank, world_size=world_size, seed=5))
    return made


class TestReplayBuffer(WorkloadConformance):
    plugin = "replay-buffer"
    options = {"columns": COLUMNS, "capacity": 7, "rows": 5, "keep": "reservoir"}  # noqa: RUF012
    bad_options = (
        {"capacity": 0},
        {"columns": {}},
        {"columns": {"n": "float33"}},
        {"columns": {"n": "(a,)float32"}},
        {"keep": "oldest"},
    )

    def step(self, role: Any, step: int) -> None:
        role.add(rows=rows(6 * step, 6 * step + 6))
        role.sample()


def test_a_full_buffer_keeps_the_newest_rows() -> None:
    made = buffer(capacity=4)
    made.add(rows(0, 3))
    made.add(rows(3, 6))
    assert sorted(made.kept["n"]) == [2, 3, 4, 5]
    np.testing.assert_array_equal(made.kept["x"][:, 0], made.kept["n"])


def test_a_reservoir_keeps_every_row_with_the_same_probability() -> None:
    capacity, seen, trials = 20, 100, 400
    counts = np.zeros(seen)
    for seed in range(trials):
        made = buffer(capacity=capacity, keep="reservoir")
        made.ctx.seed = seed
        for first in range(0, seen, 10):
            made.add(rows(first, first + 10))
        counts[made.kept["n"]] += 1
    expected = trials * capacity / seen
    deviation = np.sqrt(expected * (1 - capacity / seen))
    assert np.abs(counts - expected).max() < 4.5 * deviation


def test_ranks_share_the_slots_and_deal_out_what_one_rank_would() -> None:
    alone = buffer(capacity=10, keep="reservoir", rows=50)
    ranks = [buffer(rank, 3, capacity=10, keep="reservoir", rows=50) for rank in range(3)]
    for made in (alone, *ranks):
        made.add(rows(0, 40))
    np.testing.assert_array_equal(np.concatenate([made.kept["n"] for made in ranks]), alone.kept["n"])
    parts = [made.sample() for made in ranks]
    np.testing.assert_array_equal(np.concatenate([part["n"] for part in parts]), alone.sample()["n"])


def test_samples_are_of_the_rows_that_are_there() -> None:
    made = buffer(capacity=100, rows=500)
    made.add(rows(0, 3))
    assert set(made.sample()["n"]) == {0, 1, 2}


def test_an_empty_buffer_and_rows_of_another_shape_are_errors_that_say_what_to_do() -> None:
    made = buffer()
    with pytest.raises(RolemeshError, match="empty") as found:
        made.sample()
    assert "add before sample" in str(found.value.remedy)
    with pytest.raises(RolemeshError, match=r"'x' with rows of shape \(2,\), and got rows of shape \(3,\)"):
        made.add(Batch({"n": [1], "x": np.zeros((1, 3))}))
    with pytest.raises(RolemeshError, match="got the columns n"):
        made.add(Batch({"n": [1]}))


def test_more_ranks_than_rows_are_refused_before_anything_starts() -> None:
    options = ReplayBuffer.Options(columns=COLUMNS, capacity=2)
    ReplayBuffer.check(options, 2)
    with pytest.raises(OptionsError, match="3 ranks cannot divide 2 rows"):
        ReplayBuffer.check(options, 3)


@pytest.mark.parametrize("text", ["float33", "(,)float32", "(4,float32", "str", "object"])
def test_a_column_is_a_number_with_a_shape(text: str) -> None:
    with pytest.raises(ValidationError, match="declares no column"):
        ReplayBuffer.Options(columns={"x": text})
