"""Rows that are too long for the model, or empty: left out, cut, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.lengths import fitted


def ragged(*lengths: int, dtype: Any = np.int32) -> Ragged:
    return Ragged.from_rows([np.arange(length) for length in lengths], dtype)


def completions(prompts: tuple[int, ...], lengths: tuple[int, ...]) -> Batch:
    return Batch(
        {
            "prompt_ids": ragged(*prompts),
            "completion_ids": ragged(*lengths),
            "logprobs": ragged(*lengths, dtype=np.float32),
            "advantage": np.arange(len(prompts), dtype=np.float32),
            "group": np.arange(len(prompts)) // 2,
            "text": [str(length) for length in lengths],
        }
    )


def sizes(column: Ragged) -> list[int]:
    return [len(row) for row in column]


def test_rows_that_fit_are_the_same_batch() -> None:
    batch = completions((2, 3), (6, 0))
    assert fitted(batch, 8, "fail").batch is batch
    assert fitted(batch, None, "fail").batch is batch
    assert fitted(Batch({"other": [1]}), 8, "fail").dropped == {}


def test_a_longer_row_and_one_without_a_prompt_are_dropped_with_all_their_columns() -> None:
    found = fitted(completions((2, 3, 0, 9), (6, 6, 1, 0)), 8, "drop")
    assert ([*found.dropped], [*found.truncated]) == ([1, 2, 3], [])
    assert found.batch.rows == 1
    assert found.batch["advantage"].tolist() == [0.0]
    assert found.batch["text"] == ["6"]


def test_a_longer_completion_loses_its_end_in_every_column_of_its_tokens() -> None:
    found = fitted(completions((2, 3, 8), (6, 9, 1)), 8, "truncate")
    assert ([*found.dropped], [*found.truncated]) == ([2], [1])
    assert sizes(found.batch["completion_ids"]) == sizes(found.batch["logprobs"]) == [6, 5]
    assert sizes(found.batch["prompt_ids"]) == [2, 3]


def test_a_prompt_as_long_as_its_completion_is_not_cut_with_it() -> None:
    found = fitted(completions((5, 5), (5, 5)), 8, "truncate").batch
    assert (sizes(found["prompt_ids"]), sizes(found["completion_ids"])) == ([5, 5], [3, 3])


def test_a_longer_text_loses_its_end_with_its_mask_and_its_teacher() -> None:
    batch = Batch({"input_ids": ragged(3, 9), "loss_mask": ragged(3, 9)})
    found = fitted(batch, 8, "truncate").batch
    assert sizes(found["input_ids"]) == sizes(found["loss_mask"]) == [3, 8]
    assert found["input_ids"][1].tolist() == list(range(8))


def test_a_pair_is_dropped_whole_because_its_reference_is_of_the_whole() -> None:
    pair = Batch({"prompt_ids": ragged(2, 2), "chosen_ids": ragged(3, 3), "rejected_ids": ragged(3, 7)})
    found = fitted(pair | {"ref_chosen": np.float32([1, 2])}, 8, "truncate")
    assert ([*found.dropped], found.batch.rows) == ([1], 1)


def test_padding_is_not_counted_and_not_kept_instead_of_tokens() -> None:
    mask = np.array([[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    padded = Batch({"input_ids": np.arange(18).reshape(3, 6), "attention_mask": mask, "labels": [[1] * 6] * 3})
    dropped = fitted(padded, 3, "drop")
    assert dropped.dropped == {1: "has 4 tokens of 3 at most", 2: "is empty, or has an empty prompt"}
    found = fitted(padded, 3, "truncate").batch
    assert [row.tolist() for row in found["input_ids"]] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]
    assert [len(row) for row in found["labels"]] == sizes(found["attention_mask"]) == [6, 5]


@pytest.mark.parametrize("form", [np.array, list, lambda rows: Ragged.from_rows(rows, np.int32)])
def test_rows_are_cut_in_whatever_form_they_come(form: Any) -> None:
    batch = Batch(
        {"input_ids": form([[1, 2, 3, 4], [5, 6, 7, 8]]), "text": ["four", "more"], "label": np.array([0, 1])}
    )
    found = fitted(batch, 3, "truncate").batch
    assert [[*row] for row in found["input_ids"]] == [[1, 2, 3], [5, 6, 7]]
    assert (found["text"], found["label"].tolist()) == (["four", "more"], [0, 1])


def test_only_the_tokens_that_are_read_count_where_the_reader_is_known() -> None:
    batch = completions((2, 3), (6, 9)) | {"input_ids": ragged(9, 4)}
    assert [*fitted(batch, 8, "drop", "input_ids").dropped] == [0]
    assert [*fitted(batch, 8, "drop", "completion_ids").dropped] == [1]
    assert [*fitted(batch, 8, "drop").dropped] == [0, 1]
    both = fitted(batch, 8, "truncate").batch
    assert (sizes(both["input_ids"]), sizes(both["completion_ids"])) == ([8, 4], [6, 5])


def test_every_row_may_have_to_go() -> None:
    found = fitted(completions((9, 9), (1, 1)), 8, "truncate").batch
    assert found.rows == 0
    assert found.keys() == completions((1,), (1,)).keys()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (completions((2, 3), (6, 9)), r"row 1 \(of group 0\) has 12 tokens of 8 at most"),
        (completions((2, 0), (6, 1)), r"row 1 .* is empty, or has an empty prompt"),
        (Batch({"input_ids": ragged(3, 9), "index": np.array([7, 8])}), r"index 8 has 9 tokens"),
    ],
)
def test_with_fail_the_first_row_is_named(batch: Batch, said: str) -> None:
    with pytest.raises(RolemeshError, match=said):
        fitted(batch, 8, "fail")
