"""Why an update has taught nothing, and what a job with only such updates ends with. Pure."""

from __future__ import annotations

import numpy as np
import pytest

from rolemesh import Batch, Ragged
from rolemesh_training.learning import Learning, cause, facts

IDS = Ragged.from_rows([[1, 2, 3], [4, 5]], np.int32)
POLICY = {"completion_ids": IDS, "advantage": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"input_ids": Ragged.from_rows([], np.int32)}, "the batch has no rows"),
        ({"input_ids": Ragged.from_rows([[1], [2]], np.int32)}, "no row has a second token"),
        ({"input_ids": IDS, "loss_mask": Ragged.from_rows([[1, 0, 0], [1, 0]], np.int8)}, "`loss_mask` is 0"),
        ({"input_ids": IDS, "labels": Ragged.from_rows([[1, -100, -100], [4, -100]], np.int32)}, "`labels` is -100"),
        ({"completion_ids": Ragged.from_rows([[], []], np.int32)}, "every completion is empty"),
        (
            {"completion_ids": IDS, "completion_mask": Ragged.from_rows([[0] * 3, [0] * 2], np.uint8)},
            "`completion_mask` is 0",
        ),
        (POLICY | {"group": np.arange(2)}, "all 2 groups have one sample"),
        (POLICY | {"group": np.zeros(2, np.int64)}, "every advantage is 0 in all 1 groups"),
        (POLICY, "every advantage is 0"),
        (POLICY | {"reward": np.full(2, np.nan, np.float32)}, "no row has a reward (each is NaN)"),
        (POLICY | {"reward": np.array([np.nan, 1], np.float32)}, "every advantage is 0"),
        (
            {"completion_ids": IDS, "advantages": Ragged.from_rows([[0.0] * 3, [0.0] * 2], np.float32)},
            "every advantage",
        ),
        ({"input_ids": IDS}, "something else"),
    ],
)
def test_the_cause_is_found_in_the_rows(columns, said):
    batch = Batch(columns)
    assert said in cause([facts(batch, batch)], "something else")


def test_a_group_that_is_spread_over_ranks_or_mini_batches_has_all_its_samples():
    whole = Batch(POLICY | {"group": np.zeros(2, np.int64)})
    assert "one sample" not in cause([facts(whole[0:1], whole), facts(whole[1:2], whole)], "")
    ranks = [Batch(POLICY | {"group": np.arange(2) + 2 * rank}) for rank in (0, 1)]
    assert "all 4 groups have one sample" in cause([facts(rows, rows) for rows in ranks], "")


def test_a_mini_batch_without_rows_is_no_batch_without_rows():
    whole, none = Batch({"input_ids": IDS}), Batch({"input_ids": Ragged.from_rows([], np.int32)})
    ranks = [facts(none, none), facts(none, whole)]
    assert "the mini-batch has no rows; set mini_batches to the rows of a rank" in cause(ranks, "something else")


def test_a_rank_without_rows_does_not_hide_the_cause_of_the_others():
    empty = Batch({"input_ids": Ragged.from_rows([], np.int32)})
    masked = Batch({"input_ids": IDS, "loss_mask": Ragged.from_rows([[0] * 3, [0] * 2], np.int8)})
    assert "loss_mask" in cause([facts(empty, empty), facts(masked, masked)], "")


def test_a_cause_is_told_once_and_then_counted():
    learning = Learning()
    assert learning.verdict() == "", "no update was made"
    told = [learning.taught_nothing(f"all {n} groups have one sample; set samples") for n in (4, 8, 4)]
    assert told == [True, False, False]
    assert learning.taught_nothing("the batch has no rows")
    assert "none of 4 updates changed a weight, most often because all groups have one sample" in learning.verdict()
    after = Learning()
    after.restore(learning.state(), updates=4)
    assert not after.taught_nothing("the batch has no rows"), "a restarted rank does not tell it again"
    after.useful += 1
    assert after.verdict() == ""


def test_a_verdict_keeps_the_numbers_of_its_cause():
    learning = Learning()
    learning.taught_nothing("every advantage is 0 in all 2 groups; look")
    assert learning.verdict().endswith("because every advantage is 0 in all groups")
    learning = Learning()
    learning.taught_nothing("the learning rate is 0 after update 3; set")
    assert learning.verdict().endswith("because the learning rate is 0 after update 3")


def test_a_job_resumed_from_a_trainer_that_learned_does_not_fail():
    older = Learning()
    older.restore(None, updates=3)
    older.taught_nothing("the batch has no rows")
    assert older.verdict() == ""
