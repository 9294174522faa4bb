"""Which group a prompt's samples belong to."""

from __future__ import annotations

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh.errors import RolemeshError
from rolemesh_vllm.rows import row_index


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.tile(np.arange(4), 2), "prompts 0 and 4 have the same index 0"),
        (np.array([0.0, 0.5]), "the column 'index' has float64 values"),
        (["a", "b"], "the column 'index' has <U1 values"),
        (np.array([True, False]), "the column 'index' has bool values"),
    ],
)
def test_an_index_that_would_merge_groups_is_refused(index, message):
    prompts = Batch({"index": index, "prompt": [f"question {n}" for n in range(len(index))]})
    with pytest.raises(RolemeshError, match=message):
        row_index(prompts, 0)


def test_prompts_without_an_index_have_numbers_of_their_own_on_each_rank():
    prompts = Batch({"prompt": ["a", "b"]})
    assert len({*row_index(prompts, 0).tolist(), *row_index(prompts, 1).tolist()}) == 4
    assert row_index(Batch({"index": np.array([7, 3], dtype=np.uint16)}), 0).tolist() == [7, 3]
    assert row_index(Batch({"index": []}), 0).tolist() == []
