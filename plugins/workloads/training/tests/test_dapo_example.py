"""The pool of examples/dapo: it asks for what the batch lacks, and keeps what has an advantage."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import Batch
from rolemesh.api.workload import RankContext

FILE = Path(__file__).parents[4] / "examples/dapo/pool.py"


@pytest.fixture
def pool() -> Any:
    spec = importlib.util.spec_from_file_location("dapo_pool", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    role = module.Pool(module.PoolOptions(groups=3))
    role.setup(RankContext())
    return role


def scored(questions: Batch, advantages: dict[int, float]) -> Batch:
    """Two answers to each question."""
    group = np.repeat(questions["index"], 2)
    sign = np.tile([1.0, -1.0], questions.rows)
    return Batch({"group": group, "advantage": np.array([advantages.get(int(g), 0.0) for g in group]) * sign})


def test_prompts_that_teach_nothing_are_replaced_until_the_batch_is_full(pool: Any) -> None:
    pool.begin(Batch({"index": np.arange(10)}))
    asked = []
    for _ in range(4):
        questions = pool.ask()
        asked.append(questions["index"].tolist())
        pool.keep(scored(questions, {1: 0.5, 3: 1.0, 4: 1.0}))
    assert asked == [[0, 1, 2], [3, 4], [], []]
    assert pool.batch()["group"].tolist() == [1, 1, 3, 3, 4, 4]


def test_a_batch_stays_smaller_where_the_rounds_or_the_questions_end(pool: Any) -> None:
    pool.begin(Batch({"index": np.arange(4)}))
    for _ in range(3):
        pool.keep(scored(pool.ask(), {3: 1.0}))
    assert pool.batch()["group"].tolist() == [3, 3]
    pool.begin(Batch({"index": np.arange(2)}))
    pool.keep(scored(pool.ask(), {}))
    assert pool.batch().rows == 0
