"""The standard tests of a workload, for the engine in its process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolemesh_testing import WorkloadConformance


class TestVLLM(WorkloadConformance):
    plugin = "vllm"
    options = {
        "model": "tiny",
        "samples": 2,
        "max_tokens": 4,
        "engine": {"max_model_len": 128, "kv_cache_memory_bytes": 8 << 20},
    }
    bad_options = ({"model": "nowhere"}, {"samples": 0}, {"engine": {"no_such_argument": 1}})
    world_sizes = (1,)
    steps = 1
    timeout_s = 300.0

    @pytest.fixture
    def base(self, tiny_model: Path) -> Path:
        """The folder with the model's folder."""
        return tiny_model.parent

    @pytest.fixture(autouse=True)
    def _values(self, prompts: Any, new_weights: Any) -> None:
        self.prompts, self.weights = prompts, new_weights

    def step(self, role: Any, step: int) -> None:
        role.load_weights(weights=self.weights(10 + step, step + 1)[1])
        role.generate(prompts=self.prompts(2))
        role.evaluate(prompts=self.prompts(2))


class TestPrefill(WorkloadConformance):
    """Its operators are called in `test_pd.py`, with the half that takes what they leave, and with kills."""

    plugin = "vllm-prefill"
    options = {"model": "tiny", "engine": {"max_model_len": 128, "kv_cache_memory_bytes": 8 << 20}}
    bad_options = ({"model": "nowhere"}, {"lease": 1}, {"engine": {"no_such_argument": 1}})
    world_sizes = (1,)

    @pytest.fixture
    def base(self, tiny_model: Path) -> Path:
        """The folder with the model's folder."""
        return tiny_model.parent


class TestDecode(TestPrefill):
    """Its operators are called in `test_pd.py`, with the half that has computed the prompts."""

    plugin = "vllm-decode"
    options = {**TestPrefill.options, "max_tokens": 4}
    bad_options = ({"model": "nowhere"}, {"samples": 0}, {"engine": {"no_such_argument": 1}})
