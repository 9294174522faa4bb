"""The standard tests, for the data role, the reward role and the environment."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from rolemesh import Batch
from rolemesh_agents import Start, Task, ToolCall
from rolemesh_testing import EnvironmentConformance, WorkloadConformance, override

TASK = {"task": "word_sequence_reversal", "config": {"min_words": 2, "max_words": 2}}


class TestData(WorkloadConformance):
    plugin = "reasoning-gym"
    options = {**TASK, "eval_size": 4, "prompts_per_step": 5}
    bad_options = ({"task": "no_such_task"}, {"config": {"no_such_setting": 1}}, {"prompts_per_step": 0})

    def step(self, role: Any, step: int) -> None:
        role.next()
        role.held_out()

    @override("only reasoning_gym itself knows a task's settings, and it imports matplotlib; torch and ray it does not")
    def test_checking_the_options_is_light(self) -> None:
        """`test_importing_the_plugin_does_not_import_reasoning_gym_or_torch` says what `check` imports."""


class TestReward(WorkloadConformance):
    plugin = "reasoning-gym-reward"
    options = {"exact": True}
    bad_options = ({"task": "no_such_task"}, {"config": {"min_words": 1}})

    def step(self, role: Any, step: int) -> None:
        entries = [
            {"question": f"{row // 2}", "answer": f"{row // 2}, {step}", "metadata": {"source_dataset": TASK["task"]}}
            for row in range(6)
        ]  # two samples of each of three prompts
        samples = Batch(
            {
                "text": [f"{row // 2}, {step}" if row % 2 else "no" for row in range(6)],
                "entry": entries,
                "group": np.repeat(np.arange(3), 2),
            }
        )
        role.advantages(samples=role.score(samples=samples))
        role.evaluate(samples=samples)


class TestEnvironment(EnvironmentConformance):
    plugin = "reasoning-gym"
    options = {"task": "word_sequence_reversal", "eval_size": 4, "attempts": 3, "discount": 0.5}
    bad_options = ({"task": "no_such_task"}, {"config": {"seed": 1}}, {"attempts": 0}, {"discount": 0})
    preload = ("reasoning_gym",)

    def act(self, task: Task, start: Start, answers: Sequence[Any], random: Random) -> ToolCall | str | None:
        words = task.data["question"].rpartition(":")[2].split(",")
        right = ", ".join(word.strip() for word in reversed(words))
        return right if len(answers) == 1 + task.number % 2 else "I do not know"
