"""`questions` and `reward` against datasets, and TRL's own reward functions and calculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.judges import trl_side

from rolemesh.api.batch import Batch, Ragged
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


def seen(**given: Any) -> list[float]:
    """A reward function that notes in `SEEN` what it gets, without TRL's state and loggers."""
    SEEN.append({name: value for name, value in given.items() if name not in ("trainer_state", "log_extra")})
    SEEN[-1].pop("log_metric")
    return [1.0] * len(given["completions"])


SEEN: list[dict[str, Any]] = []


def test_a_function_gets_the_arguments_that_trl_gives_it(
    trl: None, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "prompt": "w3",
        "completion": "w9",
        "completion_ids": [1, 2, 3],
        "answer": "w4",
        "text": "w5",
        "messages": [],
        "prompt_ids": [1],
        "logprobs": [0.5],
    }
    trainer = trl_side.grpo_trainer(models["llama"], 2)
    trainer.reward_funcs, trainer.reward_func_names = [seen], ["seen"]
    SEEN.clear()
    trainer._calculate_rewards([row], ["w3"], ["w7 w8"], [[7, 8]])
    role = Reward(RewardOptions.model_validate({"functions": ["tests.judges.test_rewards:seen"]}))
    role.setup(RankContext())
    for function in role.functions:  # in this process, so that the test sees the arguments
        monkeypatch.setattr(function._judges, "judge", lambda calls, f=function, **_: [f._judge(*c) for c in calls])
    tokens = Ragged.from_rows([[7, 8]], np.int32)
    role.score(Batch({"prompt": ["w3"], "text": ["w7 w8"], "completion_ids": tokens, "row": [row]}))
    role.teardown()
    trls, ours = SEEN
    assert ours == trls
