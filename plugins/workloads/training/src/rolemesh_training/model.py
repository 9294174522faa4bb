"""From a Hugging Face folder to a model, and what of it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from rolemesh_training import attention
from rolemesh_training.options import HuggingFaceOptions

__all__ = ["decoder_layers", "load", "parameters"]

_TASKS: dict[str, Any] = {
    "causal_lm": AutoModelForCausalLM,
    "classification": AutoModelForSequenceClassification,
    "value": AutoModelForTokenClassification,  # with one label: a number for each token
}


def load(options: HuggingFaceOptions, seed: int) -> torch.nn.Module:
    """The whole model in float32 on the CPU; the same weights on every rank.

    `seed` is for ``init: random``, and for a head that the folder's weights do not have.
    """
    kind: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": options.attention}
    auto = _TASKS[options.task]
    if options.task == "value":
        kind["num_labels"] = 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if options.init == "pretrained":
            model = auto.from_pretrained(Path(options.model), local_files_only=True, **kind)
        else:
            labels = {"num_labels": kind.pop("num_labels")} if "num_labels" in kind else {}
            config = AutoConfig.from_pretrained(options.model, local_files_only=True, **labels)
            model = auto.from_config(config, **kind)
    if options.task == "value":
        model.dropout = torch.nn.Identity()  # a critic is held to what it has said of the same text
    if options.attention == "sdpa":
        model.set_attn_implementation(attention.NAME)
    model.config.use_cache = False
    if options.lora is not None:
        from rolemesh_training.lora import adapt

        adapt(model, options.lora, options.task, seed)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found: torch.nn.Module = model.train()
    return found


def parameters(
    model: torch.nn.Module, options: HuggingFaceOptions, *, aliases: bool = False
) -> dict[str, torch.nn.Parameter]:
    """What is synced and saved, by name: every parameter, or with `lora` what is trained, by peft's names in files.

    Tied ones once, or with `aliases` under each of their names.
    """
    found = dict(model.named_parameters(remove_duplicate=not aliases))
    if options.lora is None:
        return found
    return {name.replace(".default.", "."): p for name, p in found.items() if p.requires_grad}


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """What the model says is not to be split."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]
