"""The standard tests of both workloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rolemesh import Batch
from rolemesh_testing import WorkloadConformance

HERE = Path(__file__).parent
DATA = HERE / "data" / "questions.jsonl"


class TestQuestions(WorkloadConformance):
    plugin = "questions"
    options = {"data": str(DATA), "prompts_per_step": 5}
    bad_options = ({"prompts_per_step": 0}, {"held_out": -1}, {"data": 1})

    def step(self, role: Any, step: int) -> None:
        role.next()
        role.held_out()


class TestReward(WorkloadConformance):
    plugin = "reward"
    options = {"functions": [f"{HERE / 'data' / 'length_reward.py'}:length"]}
    bad_options = ({"functions": []}, {"functions": ["no_such_module:f"]}, {"timeout_s": 0})

    def step(self, role: Any, step: int) -> None:
        texts = [json.dumps(row * (step + 1)) for row in range(6)]
        samples = Batch({"prompt": ["?"] * 6, "text": texts, "group": np.repeat(np.arange(3), 2)})
        role.advantages(samples=role.score(samples=samples))
        role.evaluate(samples=samples)
