"""Load a model from a Hugging Face folder, and select its trained parameters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from rolemesh.errors import OptionsError
from rolemesh_torch.model_folder import config_of
from rolemesh_training import attention
from rolemesh_training.options import HuggingFaceOptions

__all__ = ["TASKS", "architecture", "buffers", "decoder_layers", "finished", "load", "parameters", "without_dropout"]

_LOG = logging.getLogger(__name__)
TASKS: Final[dict[str, Any]] = {
    "causal_lm": AutoModelForCausalLM,
    "classification": AutoModelForSequenceClassification,
    "value": AutoModelForTokenClassification,  # with one label: a number for each token
}
"""transformers' Auto class of each task."""


def load(options: HuggingFaceOptions, seed: int) -> torch.nn.Module:
    """Return the whole model in float32 on the CPU, with equal weights on every rank.

    `seed` is for ``init: random``, and for a head that the folder's weights do not have.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if options.init == "pretrained":
            kind = _kind(options) | _labels(options) | _dequantized(Path(options.model))
            with _attention(options):
                model = TASKS[options.task].from_pretrained(Path(options.model), local_files_only=True, **kind)
            model.float()  # transformers keeps some dtypes of the files
        else:
            model = architecture(options)
    return finished(model, options, seed)


def architecture(options: HuggingFaceOptions) -> Any:
    """Return the model of the folder's ``config.json``, initialized with torch's current random generator."""
    config = AutoConfig.from_pretrained(options.model, local_files_only=True, **_labels(options))
    with _attention(options):
        return TASKS[options.task].from_config(config, **_kind(options))


def finished(model: Any, options: HuggingFaceOptions, seed: int) -> torch.nn.Module:
    """Set `model` up as the options say: attention, adapters, checkpointing, training mode. Return it."""
    if options.task == "value":
        model.dropout = torch.nn.Identity()  # a critic is held to what it has said of the same text
    if options.attention == "sdpa":
        model.set_attn_implementation(attention.NAME)
    model.config.use_cache = False
    if options.lora is not None:
        from rolemesh_training.lora import adapt

        adapt(model, options.lora, options.task, seed)
    if not options.drops:
        without_dropout(model)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found: torch.nn.Module = model.train()
    return found


def without_dropout(model: torch.nn.Module) -> None:
    """Set every probability of dropout to 0: of modules, in modules' attributes, and in their configs.

    In evaluation mode gradient checkpointing would be off as well, so the model stays in training mode.
    """
    found = 0.0
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            found, module.p = max(found, module.p), 0.0
    for holder in (*model.modules(), *configs.values()):
        for name, value in list(vars(holder).items()):
            if "drop" in name and isinstance(value, float):
                found = max(found, value)
                setattr(holder, name, 0.0)
    if found:
        _LOG.warning("dropout of up to %s is off: the loss compares with what had none (options.dropout: true)", found)


@contextmanager
def _attention(options: HuggingFaceOptions) -> Iterator[None]:
    """Name our option where transformers refuses an attention that the model does not have."""
    try:
        yield
    except ValueError as error:
        if "attn_implementation" not in str(error):
            raise
        what = f"this model has no attention {options.attention!r}"
        raise OptionsError(what, where="attention", remedy="set `attention: eager`") from error


def _kind(options: HuggingFaceOptions) -> dict[str, Any]:
    return {"dtype": torch.float32, "attn_implementation": options.attention}


def _dequantized(folder: Path) -> dict[str, Any]:
    """Return the argument with which transformers loads quantized weights as plain ones, on a GPU, too."""
    found = config_of(folder).get("quantization_config")
    if found is None:
        return {}
    from transformers.quantizers import AutoQuantizationConfig

    told = AutoQuantizationConfig.from_dict(dict(found))
    if not hasattr(told, "dequantize"):
        what = f"the weights in {folder} are quantized with {found.get('quant_method')}, and cannot be trained"
        raise OptionsError(what, where="model", remedy="take the model's folder with weights that are not quantized")
    told.dequantize = True
    return {"quantization_config": told}


def _labels(options: HuggingFaceOptions) -> dict[str, Any]:
    return {"num_labels": 1} if options.task == "value" else {}


def parameters(
    model: torch.nn.Module, options: HuggingFaceOptions, *, aliases: bool = False
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that are synced and saved, by name: all, or with `lora` the trained ones under peft's names
    in files.

    Tied parameters appear once, or with `aliases` under each of their names.
    """
    found = dict(model.named_parameters(remove_duplicate=not aliases))
    if options.lora is None:
        return found
    return {name.replace(".default.", "."): p for name, p in found.items() if p.requires_grad}


def buffers(model: torch.nn.Module, options: Any) -> dict[str, torch.Tensor]:
    """Return the buffers that are synced and saved, by name: those of ``state_dict``, such as a router's bias or a
    running mean. With `lora` there are none.

    A buffer with several names appears once.
    """
    if options.lora is not None:
        return {}
    return {
        f"{prefix}.{name}".lstrip("."): buffer
        for prefix, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that the model declares as indivisible."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]
