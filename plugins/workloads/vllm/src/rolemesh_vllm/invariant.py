"""Batch invariance on CPUs: a token has the same bits, whatever else is in its batch. Imports vllm."""

from __future__ import annotations

from collections.abc import Callable

import torch
from vllm.model_executor.layers import utils

__all__ = ["make_rows_alike"]

Linear = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def make_rows_alike() -> None:
    """Let vLLM's linear layers on CPUs compute a row alone as they compute it among others. Call it before a model is
    built; idempotent.

    oneDNN multiplies a single row with another kernel, which adds in another order, than two rows or more. In float32
    all other numbers of rows have the same bits, with any number of threads. So a single row is computed twice.
    """
    if not isinstance(utils.cpu_unquantized_gemm, _TwoRows):
        utils.cpu_unquantized_gemm = _TwoRows(utils.cpu_unquantized_gemm)


class _TwoRows:
    """vLLM's linear layer for at least two rows."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def __call__(
        self, layer: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if x.numel() != x.shape[-1]:
            return self._linear(layer, x, weight, bias)
        row = x.reshape(1, -1)
        return self._linear(layer, row.expand(2, -1).contiguous(), weight, bias)[:1].reshape(*x.shape[:-1], -1)
