"""The pairs of examples/dpo: put together again from what the reference returns of their answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch, Ragged

FILE = Path(__file__).parents[4] / "examples/dpo/pairs.py"


@pytest.fixture
def pairs() -> Any:
    spec = importlib.util.spec_from_file_location("dpo_pairs", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Pairs()


def answers(*rows: tuple[int, bool]) -> Batch:
    """A row for each (pair, right): its tokens and the reference's log-probabilities say which one it is."""
    tokens = [[10 * pair + right] * 2 for pair, right in rows]
    return Batch(
        {
            "pair": np.array([pair for pair, _ in rows]),
            "right": np.array([right for _, right in rows]),
            "prompt_ids": Ragged.from_rows([[pair] for pair, _ in rows], np.int32),
            "completion_ids": Ragged.from_rows(tokens, np.int32),
            "ref_logprobs": Ragged.from_rows(tokens, np.float32),
        }
    )


def test_a_pair_with_an_answer_that_was_left_out_is_left_out(pairs: Any) -> None:
    found = pairs.join(answers((1, True), (2, True), (3, True), (1, False), (3, False)))
    assert [row.tolist() for row in found["prompt_ids"]] == [[1], [3]]
    assert [row.tolist() for row in found["chosen_ids"]] == [[11, 11], [31, 31]]
    assert [row.tolist() for row in found["rejected_ids"]] == [[10, 10], [30, 30]]
    assert (found["ref_chosen"].tolist(), found["ref_rejected"].tolist()) == ([22, 62], [20, 60])
    assert pairs.join(answers((1, True), (2, False))).rows == 0
