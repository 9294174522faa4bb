"""Write a Hugging Face folder from trained parameters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

from rolemesh.errors import OptionsError
from rolemesh_torch.model_folder import config_of
from rolemesh_torch.stored import skeleton, stored
from rolemesh_training.model import TASKS

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
    ".onnx",
    ".onnx_data",
)


def export(source: Path, parameters: Mapping[str, torch.Tensor], folder: Path, task: str = "causal_lm") -> None:
    """Copy `source` (config, tokenizer) without its weights to `folder`, and write ``model.safetensors``.

    The exported config names the class that was trained for `task`, its labels, and the dtype of the weights, so
    ``from_pretrained`` of the task's Auto class loads exactly the parameters. Tensors have the names and shapes that
    ``save_pretrained`` gives them. Raises `OptionsError` if `source` is gone.
    """
    if not (source / "config.json").is_file():
        raise OptionsError(
            f"the model folder {source} is gone, so there is no config and no tokenizer for the export",
            where="model",
            remedy="put it back; the job's snapshots have the weights only",
        )
    for path in sorted(source.rglob("*")):  # folders too: templates, and the code of a model
        inside = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inside.parts[:-1])
        if path.is_file() and not hidden and not path.name.endswith(_WEIGHTS):
            (folder / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / inside)
    (folder / "config.json").write_text(json.dumps(_config(source, parameters, task), indent=2) + "\n")
    tensors = stored(skeleton(source, TASKS[task]), parameters)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def _config(source: Path, parameters: Mapping[str, torch.Tensor], task: str) -> dict[str, Any]:
    """Return the ``config.json`` of the exported model: that of `source`, updated for the trained parameters."""
    config = config_of(source)
    known = AutoConfig.from_pretrained(source, local_files_only=True)
    config["architectures"] = [TASKS[task]._model_mapping[type(known)].__name__]
    if task == "value":
        config |= {"num_labels": 1, "id2label": {"0": "value"}, "label2id": {"value": 0}}
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in parameters.values()}
    dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
    for part in (config, *(value for value in config.values() if isinstance(value, dict) and "model_type" in value)):
        part.pop("quantization_config", None)  # what was trained is not quantized
        if not part.keys().isdisjoint(("dtype", "torch_dtype")):
            part.pop("torch_dtype", None)  # the dtype's older name
            part["dtype"] = dtype
    return config | {"dtype": dtype}
