"""The ends of the PPO flow on a tiny model: questions, a rollout that samples from the weights that it gets, scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rolemesh import Batch, Broadcast, Ragged, Split, operator
from rolemesh_training.model import load
from rolemesh_training.options import HuggingFaceOptions

ROWS, TOKENS = 8, 4


def tiny(folder: str, **options: Any) -> torch.nn.Module:
    """The tiny model with the weights that all roles begin with."""
    return load(HuggingFaceOptions(model=folder, init="random", init_seed=3, **options), 3)


def prompts(step: int) -> list[np.ndarray]:
    """Return prompts of 3 to 6 tokens."""
    rng = np.random.default_rng(step)
    return [rng.integers(2, 256, int(rng.integers(3, 7))) for _ in range(ROWS)]


def sample(model: torch.nn.Module, asked: Sequence[np.ndarray], step: int) -> tuple[list[Any], list[Any]]:
    """Completions of `TOKENS` tokens, and the log-probability of each."""
    generator = torch.Generator().manual_seed(step)
    completions, logprobs = [], []
    model.eval()
    for prompt in asked:
        ids, found = [int(token) for token in prompt], []
        for _ in range(TOKENS):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            token = int(torch.multinomial(logits.exp(), 1, generator=generator))
            found.append(float(logits[token]))
            ids.append(token)
        completions.append(np.array(ids[-TOKENS:], dtype=np.int32))
        logprobs.append(np.array(found, dtype=np.float32))
    return completions, logprobs


def score(completion: np.ndarray) -> float:
    """The share of even tokens."""
    return float((np.asarray(completion) % 2 == 0).mean())


class Data:
    """Asks."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    @operator(returns=Split())
    def next(self) -> Batch:
        return Batch({"prompt_ids": Ragged.from_rows(prompts(self.ctx.step), dtype=np.int32)})

    @operator(returns=Split())
    def held_out(self) -> Batch:
        return Batch({"prompt_ids": Ragged.from_rows(prompts(1000)[:1], dtype=np.int32)})


class Rollout:
    """Answers by the newest weights."""

    def __init__(self, ctx: Any, model: str) -> None:
        self.ctx, self.model = ctx, tiny(str(Path(model)))

    @operator(rows=Split(), returns=Split())
    def generate(self, rows: Batch) -> Batch:
        completions, logprobs = sample(self.model, list(rows["prompt_ids"]), self.ctx.step)
        return rows | {
            "completion_ids": Ragged.from_rows(completions, dtype=np.int32),
            "logprobs": Ragged.from_rows(logprobs, dtype=np.float32),
        }

    @operator(rows=Split(), returns=Split())
    def evaluate(self, rows: Batch) -> Batch:
        return rows

    @operator(weights=Broadcast())
    def load_weights(self, weights: Any) -> None:
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, shard in weights.items():
                if name in own:
                    own[name].copy_(torch.as_tensor(np.asarray(shard.data)))

    def snapshot(self) -> dict[str, Any]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(torch.as_tensor(state[name]))


class Reward:
    """Scores."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx

    @operator(rows=Split(), returns=Split())
    def score(self, rows: Batch) -> Batch:
        found = np.array([score(row) for row in rows["completion_ids"]], dtype=np.float32)
        for each in found:
            self.ctx.metric(reward=float(each))
        return rows | {"reward": found}

    @operator(rows=Split())
    def evaluate(self, rows: Batch) -> None:
        pass
