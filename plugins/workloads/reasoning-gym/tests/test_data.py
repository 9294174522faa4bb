"""The questions and their order. No question comes twice, and training uses no held-out question."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh.api.batch import Batch, concat
from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError
from rolemesh_reasoning_gym import DataOptions, ReasoningGymData

TASK = {"task": "word_sequence_reversal", "config": {"min_words": 2, "max_words": 2}}


def data(*, rank: int = 0, world_size: int = 1, seed: int = 0, steps: int = 4, **options: Any) -> ReasoningGymData:
    given = TASK | {"eval_size": 6, "prompts_per_step": 5} | options
    workload = ReasoningGymData(DataOptions(**given))
    ctx = RankContext(rank=rank, world_size=world_size, seed=seed, steps=steps)
    workload.setup(ctx)
    return workload


def test_importing_the_plugin_does_not_import_reasoning_gym_or_torch() -> None:
    code = (
        "import sys, rolemesh_reasoning_gym as r; r.ReasoningGymData.operators(None)\n"
        "print([m for m in ('reasoning_gym', 'torch', 'ray') if m in sys.modules])\n"
        "r.ReasoningGymData.check(r.DataOptions(task='word_sequence_reversal'), 1)\n"
        "print([m for m in ('torch', 'ray', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_preloading_starts_no_thread() -> None:
    code = (
        "import os, importlib, rolemesh_reasoning_gym as r\n"
        "for module in r.ReasoningGymData.preload: importlib.import_module(module)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "1"


def test_a_row_is_a_chat_of_solved_demonstrations_and_the_question() -> None:
    batch = data(demonstrations=2, system="Be brief.").next()
    messages = batch["messages"][0]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[-1]["content"] == batch["question"][0] == batch["entry"][0]["question"]
    first, second = batch["messages"][:2]
    assert first[:-1] == second[:-1]
    assert messages[2]["content"] == ", ".join(reversed(messages[1]["content"].strip().rpartition(": ")[2].split(", ")))


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_the_rows_of_a_step_do_not_depend_on_the_number_of_ranks(world_size: int) -> None:
    alone = data()
    ranks = [data(rank=rank, world_size=world_size) for rank in range(world_size)]
    for _ in range(3):
        assert concat([r.next() for r in ranks]) == alone.next()
    assert concat([r.held_out() for r in ranks]) == alone.held_out()


def test_every_item_is_asked_once_across_a_restart() -> None:
    whole = data()
    expected = [whole.next() for _ in range(4)]
    first = data()
    seen = [first.next(), first.next()]
    second = data()
    second.restore(first.snapshot())
    seen += [second.next(), second.next()]
    assert seen == expected
    indices = [i for batch in seen for i in batch["index"].tolist()]
    assert len(set(indices)) == len(indices) == 20


def test_held_out_questions_and_demonstrations_are_never_trained_on() -> None:
    few = data(task="coin_flip", config={"min_trials": 3, "max_trials": 6}, eval_size=3, demonstrations=1, steps=40)
    held = set(few.held_out()["question"])
    shown = {m["content"] for m in few.held_out()["messages"][0][:-1]}
    asked = {q for _ in range(40) for q in few.next()["question"]}
    assert len(held) == 3
    assert not asked & (held | shown)
    assert not held & shown


def test_neighbouring_seeds_share_questions_by_chance_only() -> None:
    first, second = (set(data(seed=seed, prompts_per_step=100).next()["question"]) for seed in (0, 1))
    # 8888 words, many of them "the": independent draws share about one of 100; unspaced seeds would share 99.
    assert len(first & second) < 10


@pytest.mark.soak
def test_a_task_with_too_few_questions_for_the_held_out_set_is_an_error() -> None:
    with pytest.raises(OptionsError, match=r"'coin_flip' has too few different questions: \d+ of 500 found"):
        data(task="coin_flip", config={"min_trials": 3, "max_trials": 4}, eval_size=500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"task": "word_sequence_reversl"},
            r"no task 'word_sequence_reversl'[\s\S]*did you mean 'word_sequence_reversal'",
        ),
        ({"task": "zzz"}, r"no task 'zzz'[\s\S]*there are \d+"),
        ({"config": {"min_word": 2}}, r"config.min_word: .* has no setting 'min_word'[\s\S]*did you mean 'min_words'"),
        ({"config": {"seed": 2}}, r"config.seed: seed is set by the workload, from the job's seed"),
        ({"config": {"min_words": 3, "max_words": 2}}, r"refuses this config: max_words must be >= min_words"),
        ({"config": {"min_words": "x"}}, r"refuses this config"),
    ],
)
def test_a_task_or_config_that_does_not_fit_is_refused_with_a_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        ReasoningGymData.check(DataOptions(**(TASK | options)), world_size=1)


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValidationError, match="prompts"):
        DataOptions(task="coin_flip", prompts=3)


def test_more_ranks_than_prompts_leaves_some_ranks_without_rows() -> None:
    batches = [data(rank=rank, world_size=7).next() for rank in range(7)]
    assert sorted(b.rows for b in batches) == [0, 0, 1, 1, 1, 1, 1]
    assert all(isinstance(b, Batch) and set(b) == set(batches[0]) for b in batches)
