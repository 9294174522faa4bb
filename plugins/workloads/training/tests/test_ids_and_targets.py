"""Rows of another vocabulary are refused by name, and rows without a target are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.workload import RankContext
from rolemesh.errors import RolemeshError
from rolemesh_fsdp import FSDPOptions, FSDPWorkload
from rolemesh_training.columns import known_ids, untaught_rows


def ragged(*rows: Any) -> Ragged:
    return Ragged.from_rows([np.asarray(row) for row in rows], np.int32)


@pytest.mark.parametrize("name", ["input_ids", "prompt_ids", "completion_ids", "chosen_ids", "labels", "teacher_ids"])
def test_an_id_of_another_vocabulary_is_named(name: str) -> None:
    batch = Batch({name: ragged([1, 2], [3, 61])})
    known_ids(batch, 62)
    known_ids(batch, None)
    with pytest.raises(RolemeshError, match=f"row 1: the column '{name}' has the token 61, and the model knows 61"):
        known_ids(batch, 61)


def test_a_trainer_refuses_ids_of_another_vocabulary(tiny_model: Path) -> None:
    workload = FSDPWorkload(FSDPOptions(model=str(tiny_model)))
    workload.setup(RankContext())
    with pytest.raises(RolemeshError, match="the model knows 61 tokens"):
        workload.train(Batch({"input_ids": ragged([1, 2, 99])}))


def test_rows_without_a_target_are_counted(tiny_model: Path) -> None:
    ctx = RankContext()
    workload = FSDPWorkload(FSDPOptions(model=str(tiny_model), lr=1e-3, max_length=4, too_long="truncate"))
    workload.setup(ctx)
    ids, masks = [[1, 2, 3, 4, 5]] * 4, [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    batch = Batch({"input_ids": ragged(*ids), "assistant_masks": ragged(*masks)})
    assert untaught_rows(batch) == [1, 2]
    workload.train(batch)
    assert ctx.port.sums["rows_without_target"] == 3, "the cut has taken the target of the last row"
    assert ctx.port.sums["trained_tokens"] == 3
    assert untaught_rows(Batch({"input_ids": ragged([1])})) == [], "all tokens are targets"
