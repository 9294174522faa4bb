"""Ranks of each trainer measure together, decide alike, and train a model that cannot be packed as one rank does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trainer_group
from every_model import config_of, model_of

from rolemesh.api.batch import Batch, Ragged

pytestmark = pytest.mark.soak
KINDS = {"llama": "sdpa", "qwen3_next": "sdpa", "openai-gpt": "eager", "mixtral": "sdpa"}
"""Kind → attention. A packed row ends the forward pass of openai-gpt in the middle, with an exception."""


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The options of a trainer of this kind of model."""
    folder = tmp_path_factory.mktemp(request.param)
    more = {"output_router_logits": True} if request.param == "mixtral" else {}
    model_of(config_of(request.param, **more), folder, KINDS[request.param]).save_pretrained(folder)
    return {"model": str(folder), "attention": KINDS[request.param]}


def batch(seed: int, model: str) -> Batch:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, 60, size=n) for n in (3, 4, 3, 5)]
    prompts[1] = prompts[0]
    completions = [rng.integers(3, 60, size=n) for n in (4, 2, 5, 3)]
    return Batch(
        {
            "prompt_ids": Ragged.from_rows(prompts, np.int32),
            "completion_ids": Ragged.from_rows(completions, np.int32),
            "logprobs": Ragged.from_rows([np.full(len(row), -4.0) for row in completions], np.float32),
            "advantage": np.float32([1, -1, 0.5, 2]),
        }
    )


def scored(workload: Any, ctx: Any, rows: Batch, shares: list[int], steps: list[Batch]) -> dict[str, Any]:
    """Score rows, then train; the fitness that this rank knows, too."""
    found = [np.asarray(row) for row in trainer_group.logprobs(workload, ctx, rows, shares)]
    trained = trainer_group.train(workload, ctx, steps, shares)
    return {**trained, "logprobs": found, "why": workload.engine._fit.why}


@pytest.mark.parametrize("shares", [[3, 1], [0, 4]])
def test_two_ranks_score_and_train_as_one(alone, trainer, model, shares):
    group, own = trainer
    given = {**model, "lr": 1e-2, "optimizer": "sgd", "loss": "rolemesh_training.losses:grpo", "micro_batch_rows": 2}
    steps = [batch(seed, model["model"]) for seed in (1, 2)]
    rows = batch(0, model["model"])
    one = alone(scored, 1, given, rows, [4], steps)
    two = group(scored, 2, {**given, **own}, rows, shares, steps)
    assert two[0]["why"] == two[1]["why"] == one[0]["why"]
    assert (one[0]["why"] == "") == ("llama" in model["model"])
    found = [row for rank in two for row in rank["logprobs"]]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(one[0]["logprobs"]), atol=1e-4)
    wanted, weights = trainer_group.assembled(one), trainer_group.assembled(two)
    for name, value in wanted.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
