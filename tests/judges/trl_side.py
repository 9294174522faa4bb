"""TRL's trainers around a tiny model, without a hub, and what they compute of a batch."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.judges.sides import LONGEST, Side, gradient, loaded, padded, tokenizer

from rolemesh.api.batch import Batch

COMMON: dict[str, Any] = {
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_strategy": "no",
    "save_strategy": "no",
    "disable_dropout": True,
}


def dataset(columns: dict[str, list[Any]]) -> Any:
    """A `datasets.Dataset`. dill, with which datasets names what it caches, cannot read pyarrow's classes."""
    import uuid

    from datasets import Dataset, fingerprint

    fingerprint.Hasher.hash = classmethod(lambda cls, value: uuid.uuid4().hex)
    return Dataset.from_dict(columns)


def grpo_trainer(folder: Path, rows: int = 8, *, kind: Any = None, **config: Any) -> Any:
    """TRL's GRPOTrainer of the folder's model; `config` are GRPOConfig's."""
    from trl import GRPOConfig, GRPOTrainer

    warnings.simplefilter("ignore")
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=rows,
        num_generations=2,
        max_completion_length=LONGEST,
        **{**COMMON, "use_bias_correction_kl": False, **config},
    )
    trainer = (kind or GRPOTrainer)(
        model=loaded(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=dataset({"prompt": ["w3"] * rows}),
        processing_class=tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def policy(folder: Path, batch: Batch, changes: dict[str, torch.Tensor] | None = None, **config: Any) -> Side:
    """Return GRPOTrainer's results for the batch in training. `changes` replace tensors of TRL's own layout."""
    trainer = grpo_trainer(folder, batch.rows, **config)
    if changes and "importance_sampling_ratio" in changes:
        trainer.use_vllm = True  # which turns its correction on; nothing is generated
    trainer.model.train()
    loss = trainer._compute_loss(trainer.model, {**padded(batch), **(changes or {})})
    return Side(float(loss), gradient(trainer.model, loss))


def conversations(folder: Path, batch: Batch, later: Path | None = None, **config: Any) -> Side:
    """Return GRPOTrainer's results for rows with turns of an environment, the columns and corrections made by TRL.

    TRL scores the rows with the model of `folder`, and trains the one of `later`. Only the advantages are given.
    """
    trainer = grpo_trainer(folder, batch.rows, **config)
    trainer.use_vllm = True  # which turns its correction on; nothing is generated
    lists = {
        name: [np.asarray(row).tolist() for row in batch[name]]
        for name in ("prompt_ids", "completion_ids", "completion_mask", "logprobs")
    }
    trainer._generate = lambda prompts: (
        *(lists[name] for name in ("prompt_ids", "completion_ids", "completion_mask")),
        [""] * batch.rows,
        lists["logprobs"],
        {},
        None,
        None,
    )
    trainer.model.train()
    found = trainer._generate_and_score_completions([{"prompt": "w3"}] * batch.rows)
    found["advantages"] = torch.tensor(np.asarray(batch["advantage"]))
    if later is not None:
        trainer.model.load_state_dict(loaded(later).state_dict())
    loss = trainer._compute_loss(trainer.model, found)
    return Side(float(loss), gradient(trainer.model, loss))
