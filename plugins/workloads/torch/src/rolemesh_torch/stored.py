"""The tensors of a model in memory as ``save_pretrained`` writes them: transformers joins and renames some as it loads
them, such as the experts of a layer. Importing this imports transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

__all__ = ["skeleton", "stored"]


def skeleton(folder: Path, kind: Any = AutoModelForCausalLM) -> Any:
    """Return the model of a folder's ``config.json`` without content, on torch's device ``meta``.

    `kind` is the Auto class of the model's task. Raises `ValueError` if it has no model of this config.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        return kind.from_config(config)


def stored(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `tensors`, named as `model` names them, under the names and in the shapes of files.

    Those of files that are parts of one in memory are views of it, where its layout allows that.
    """
    found: dict[str, torch.Tensor] = revert_weight_conversion(model, dict(tensors))
    return found
