"""Low-rank adapters, which peft adds inside a model without changing its interface for losses; and peft's folder
format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file
from transformers.pytorch_utils import Conv1D

from rolemesh.errors import RolemeshError
from rolemesh_training.options import HuggingFaceOptions, LoRAOptions

__all__ = ["adapt", "export"]

_HEADS = ("score", "classifier")
_TASKS = {"causal_lm": "CAUSAL_LM", "classification": "SEQ_CLS", "value": "TOKEN_CLS"}


def adapt(model: torch.nn.Module, options: LoRAOptions, task: str, seed: int) -> None:
    """Put adapters into `model`, equal ones on every rank. From then on only they, and a new head, are trained.

    Raises `RolemeshError` if `options.targets` has a name that no layer has.
    """
    heads = [] if task == "causal_lm" else [name for name in _HEADS if hasattr(model, name)]
    if options.targets != "all-linear":
        _every_target_exists(model, options.targets, heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(_config(options, exclude_modules=heads or None), model)
    for layer in model.modules():
        if isinstance(getattr(layer, "base_layer", None), (Conv1D, torch.nn.Embedding)):
            raise ValueError(
                f"lora.targets has a layer of the kind {type(layer.base_layer).__name__}; only torch.nn.Linear is "
                "supported, whose adapters a rollout can merge"
            )
    for name in heads:
        getattr(model, name).requires_grad_(True)


def _every_target_exists(model: torch.nn.Module, targets: Sequence[str], heads: Sequence[str]) -> None:
    """Raise `RolemeshError` for a target without a layer, and for a head that is tied to the embedding.

    peft matches a target with a layer's full name, or with its end after a dot, and ignores a target without a match if
    another target has one. A new head is trained whole and takes no adapter.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None and getattr(model.config, "tie_word_embeddings", False):  # type: ignore[union-attr]
        own = next(name for name, layer in model.named_modules() if layer is head)
        if tied := [t for t in targets if own == t or own.endswith(f".{t}")]:
            raise RolemeshError(
                f"the layer {tied[0]!r} has the weights of the token embedding, which no adapter changes",
                where="lora.targets",
                remedy=f"leave {tied[0]!r} out",
            )
    names = [name for name, _ in model.named_modules() if name and name.partition(".")[0] not in heads]
    missing = [t for t in targets if not any(name == t or name.endswith(f".{t}") for name in names)]
    if targets and not missing:
        return
    linear = {name.rpartition(".")[2] for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    raise RolemeshError(
        f"the model has no layer {', '.join(map(repr, missing))}" if missing else "there is no layer to adapt",
        where="lora.targets",
        remedy=f"name linear layers of the model ({', '.join(sorted(linear - set(heads)))}), or write "
        "targets: all-linear",
    )


def export(options: HuggingFaceOptions, tensors: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Write the files that ``PeftModel.from_pretrained`` reads: ``adapter_config.json`` and
    ``adapter_model.safetensors``."""
    assert options.lora is not None
    folder.mkdir(parents=True, exist_ok=True)
    heads = sorted({name.partition(".")[0] for name in tensors} & set(_HEADS))
    more: dict[str, Any] = {"task_type": _TASKS[options.task], "modules_to_save": heads or None}
    config = _config(options.lora, base_model_name_or_path=options.model, inference_mode=True, **more)
    config.save_pretrained(str(folder))
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _config(options: LoRAOptions, **more: Any) -> LoraConfig:
    return LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]
        lora_dropout=options.dropout,
        target_modules=options.targets,
        **more,
    )
