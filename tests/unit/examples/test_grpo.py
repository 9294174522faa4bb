"""The questions and rewards of examples/grpo are those of reasoning-gym, in its order.

`python -m tests.unit.examples.test_grpo` writes the questions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolemesh import RankContext
from rolemesh.job.prepared import prepare
from rolemesh_reasoning_gym import ReasoningGymData
from rolemesh_reasoning_gym.tasks import make_dataset

FOLDER = Path(__file__).parents[3] / "examples/grpo"
TASK: dict[str, Any] = {"task": "word_sequence_reversal", "config": {"min_words": 2, "max_words": 2}}
HELD_OUT, TRAINED = 64, 336


def gym() -> ReasoningGymData:
    options = {**TASK, "demonstrations": 3, "eval_size": HELD_OUT, "prompts_per_step": TRAINED}
    role = ReasoningGymData(ReasoningGymData.Options(**options))
    role.setup(RankContext(seed=0, steps=1))
    return role


def placed() -> str:
    """Return the file, in which seed 0 holds out and asks the questions in reasoning-gym's order."""
    size = HELD_OUT + TRAINED
    held = sorted(np.random.default_rng([0, size]).permutation(size)[:HELD_OUT].tolist())
    train = [number for number in range(size) if number not in held]
    asked = np.random.default_rng([0, size, 0]).permutation(train).tolist()
    lines = [""] * size
    role = gym()
    for numbers, rows in ((held, role.held_out()), (asked, role.next())):
        for number, question, answer in zip(numbers, rows["question"], rows["answer"], strict=True):
            lines[number] = json.dumps({"question": question, "answer": answer})
    return "\n".join(lines) + "\n"


def test_the_job_asks_what_reasoning_gym_asks() -> None:
    role, job = gym(), prepare(FOLDER / "job.yaml")
    chosen = job.selection.roles["data"]
    data = chosen.cls(chosen.options)
    data.setup(RankContext(seed=0, steps=15, base=FOLDER))
    rows, held = role.next(), data.held_out()
    assert held["messages"] == role.held_out()["messages"]
    for step in range(15):
        asked = data.next()
        assert asked["messages"] == rows["messages"][8 * step : 8 * step + 8]
        assert [row["answer"] for row in asked["row"]] == rows["answer"][8 * step : 8 * step + 8]


@pytest.mark.parametrize(
    "text", ["week, come", " week, come\n", "week, come.", "The answer: week, come", "come, week", "", "week"]
)
def test_the_reward_is_that_of_reasoning_gym(text: str) -> None:
    entry = {"answer": "week, come"}
    judge = make_dataset(**TASK, seed=0, size=1)
    completions, answer = [[{"role": "assistant", "content": text}]], [entry["answer"]]
    partial, correct = (
        each.use.resolve()(completions, answer=answer)
        for each in prepare(FOLDER / "job.yaml").selection.roles["reward"].options.functions
    )
    assert partial == [judge.score_answer(text.strip(), entry)]
    assert correct == [float(partial == [1.0])]


if __name__ == "__main__":
    (FOLDER / "questions.jsonl").write_text(placed())
