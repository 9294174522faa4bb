"""`questions` and `reward` against datasets, and TRL's own reward functions and calculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh.api.batch import Batch
from rolemesh.api.workload import RankContext
from rolemesh_rewards.reward import Reward, RewardOptions
from rolemesh_rewards.table import read_rows

pytestmark = pytest.mark.soak

ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{a}/3?"}],
        "solution": rf"\frac{{{a}}}{{3}}",
        "level": a,
        "tags": ["x"] * a,
    }
    for a in range(1, 5)
]
TEXTS = [
    "<think>\nEasy.\n</think>\nIt is \\boxed{\\frac{1}{3}}.",
    "\\boxed{\\frac{5}{3}}",
    "<think>\nNo.\n</think>\nI do not know.",
    "\\boxed{9**9**9}",
]


def saved(folder: Path, several: bool) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list(ROWS)
    (DatasetDict({"test": data.select([0]), "train": data}) if several else data).save_to_disk(str(folder))


@pytest.mark.parametrize("several", [False, True])
def test_a_saved_dataset_has_the_rows_that_datasets_reads(trl: None, tmp_path: Path, several: bool) -> None:
    saved(tmp_path / "saved", several)
    assert read_rows(tmp_path / "saved", "train" if several else None) == ROWS


def test_a_selection_that_was_saved_has_its_rows_only(trl: None, tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).shuffle(seed=1).select([2, 0]).save_to_disk(str(tmp_path / "some"), num_shards=2)
    from datasets import load_from_disk

    assert read_rows(tmp_path / "some") == load_from_disk(str(tmp_path / "some")).to_list()


def test_parquet_has_the_rows_that_datasets_writes(trl: None, tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).to_parquet(str(tmp_path / "q.parquet"))
    assert read_rows(tmp_path / "q.parquet") == ROWS


def test_the_functions_of_trl_run_unchanged(trl: None) -> None:
    from trl.rewards import accuracy_reward, think_format_reward

    functions = ["trl.rewards:accuracy_reward", {"use": "trl.rewards:think_format_reward", "weight": 0.5}]
    role = Reward(RewardOptions.model_validate({"functions": functions}))
    role.setup(RankContext())
    samples = Batch(
        {"messages": [row["prompt"] for row in ROWS], "text": TEXTS, "row": ROWS, "group": np.zeros(4, int)}
    )
    rewards: list[Any] = role.score(samples)["reward"].tolist()
    role.teardown()
    chats = [[{"role": "assistant", "content": text}] for text in TEXTS]
    right = accuracy_reward(chats, [row["solution"] for row in ROWS])
    formats = think_format_reward(chats)
    assert rewards == [a + 0.5 * b for a, b in zip(right, formats, strict=True)]
    assert rewards[:3] == [1.5, 0, 0.5]
