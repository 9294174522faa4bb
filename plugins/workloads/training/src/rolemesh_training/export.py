"""A Hugging Face folder from trained parameters."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from rolemesh.errors import OptionsError

__all__ = ["export"]

_WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".h5",
    ".msgpack",
    ".gguf",
)


def export(source: Path, parameters: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Copy `source` (config, tokenizer) without its weights to `folder`, and write ``model.safetensors`` beside.

    Raises `OptionsError` if `source` is gone.
    """
    if not (source / "config.json").is_file():
        raise OptionsError(
            f"the model folder {source} is gone, so there is no config and no tokenizer for the export",
            where="model",
            remedy="put it back; the job's snapshots have the weights only",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and not path.name.endswith(_WEIGHTS):
            shutil.copy(path, folder)
    tensors = {name: tensor.contiguous() for name, tensor in parameters.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
