"""Batch invariance on CPUs: a token has the same bits, whatever else is in its batch. Imports vllm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers import utils
from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

__all__ = ["make_batches_invariant", "single_queries"]

ONE_TILE = 8192
"""Elements of the keys of a head that always fit into one tile of the attention kernel, by its formula for an L2 cache
of 512 KiB or more. A context of at most this size is added up in one go."""
Linear = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def make_batches_invariant() -> None:
    """Let vLLM compute a token on CPUs with the same bits in every batch. Call it before a model is built; idempotent.

    - **Linear layers.** oneDNN multiplies a single row with another kernel, which adds in another order, than two rows
      or more. In float32 all other numbers of rows have the same bits, with any number of threads. So a single row is
      computed twice.
    - **Attention.** The kernel divides long contexts into tiles, and the size of a tile depends on the number of
      queries at once. So each query of a long context is computed alone, as it is when the token is generated.
    """
    if not isinstance(utils.cpu_unquantized_gemm, _TwoRows):
        utils.cpu_unquantized_gemm = _TwoRows(utils.cpu_unquantized_gemm)
        builder = CPUAttentionMetadataBuilder
        builder.build = _build_with(builder.build)  # type: ignore[method-assign]


def single_queries(
    starts: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, keep: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return starts, lengths and block table in which each query behind `keep` positions is a request of its own.

    `starts` (int32, one more than requests): the first query of each request in the batch, and their number; `lengths`
    (int32): the context of each request, which ends with its queries; `table`: a row of blocks per request.
    """
    queries = starts.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), queries)
    position = torch.arange(len(owner)) + (lengths - starts[1:])[owner]
    begins = position >= keep
    begins[starts[:-1][queries > 0].long()] = True
    first = torch.nonzero(begins).flatten()
    ends = torch.cat([first[1:], torch.tensor([len(owner)])])
    new_starts = torch.cat([first, ends[-1:]]).to(starts.dtype)
    return new_starts, (position[ends - 1] + 1).to(lengths.dtype), table[owner[first]].contiguous()


def _build_with(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return vLLM's `build` with single queries for long contexts."""

    def built(self: Any, common_prefix_len: int, common: Any, fast_build: bool = False) -> Any:
        made = build(self, common_prefix_len, common, fast_build)
        keep = max(1, ONE_TILE // self.head_dim)
        if (
            made.max_query_len == 1
            or made.max_seq_len <= keep
            or made.causal is not True
            or made.encoder_cache is not None
        ):
            return made
        requests = len(made.seq_lens)
        starts, lengths, table = single_queries(
            made.query_start_loc[: requests + 1], made.seq_lens, made.block_table[:requests], keep
        )
        made.query_start_loc, made.seq_lens, made.block_table = starts, lengths, table
        made.scheduler_metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=len(lengths),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            seq_lens=lengths,
            dtype=self.dtype,
            query_start_loc=starts,
            causal=True,
            sliding_window_size=self.window_size,
            isa=self.isa,
            enable_kv_split=False,
            dynamic_causal=None,
            kv_cache_dtype=self.kv_cache_dtype,
        )
        return made

    return built


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
