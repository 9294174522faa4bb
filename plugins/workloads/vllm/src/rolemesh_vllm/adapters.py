"""Merge low-rank adapters into the weights of the folder on which they were trained: W + scaling · B A, in float32.

They are merged, not run by vLLM's own LoRA. So generation is as fast as without adapters, any rank and layer works, and
the result equals the trainer's model up to the rounding of one sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from rolemesh_vllm.checkpoint import HEAD, loaded_files, missing_layer

__all__ = ["check_adapters", "merged"]

_A, _B = ".lora_A.weight", ".lora_B.weight"


def check_adapters(adapters: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ValueError` for adapters that are not pairs of matrices that fit a matrix of the checkpoint."""
    for name, value in adapters.items():
        base, end = name[: -len(_A)], name[-len(_A) :]
        if end not in (_A, _B) or not adapters.keys() >= {base + _A, base + _B}:
            raise ValueError(f"{name!r} is no adapter with both of its halves, {_A[1:]} and {_B[1:]}")
        matrix = shapes.get(f"{base}.weight", ())
        if not matrix:
            raise ValueError(f"{name!r} has nothing to be merged into: {missing_layer(base)}")
        if len(matrix) != 2 or value.shape[int(end == _A)] != matrix[int(end == _A)]:
            raise ValueError(
                f"{name!r} of shape {tuple(value.shape)} does not fit {base}.weight of the rollout model's checkpoint, "
                f"whose shape is {matrix}; trainer and rollout must be given the same model"
            )


def merged(
    model: Path, adapters: Mapping[str, torch.Tensor], scaling: float, tied: str | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of the model's safetensors files, which stay mapped, with its adapter added; a tied head comes
    last."""
    head = None
    for path in loaded_files(model):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                weight, base = file.get_tensor(name), name.removesuffix(".weight")
                if base + _A in adapters:
                    up, down = adapters[base + _B].float(), adapters[base + _A].float()
                    weight = torch.addmm(weight.float(), up, down, alpha=scaling)
                head = weight if name == tied else head
                yield name, weight
    if head is not None:
        yield HEAD, head
