"""Attention within a packed row, block by block, without a mask of length × length.

It is registered with transformers, so every model that takes its attention from there can use it. A packed row passes
the ends of its tokens (`rolemesh_training.packing.Packed`) in place of a mask; any other call uses transformers' own
``sdpa``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["BLOCK", "NAME", "argument", "packed_calls", "packed_sdpa"]

NAME = "packed_sdpa"
"""Name for ``set_attn_implementation``."""
BLOCK = 512
"""Number of tokens whose masks exist at the same time. The backward pass computes the masks again, so none is kept."""


_calls = 0


def packed_calls() -> int:
    """Return how often a layer of a model has taken a packed row in this process."""
    return _calls


def argument(ends: torch.Tensor) -> torch.Tensor:
    """Return the argument in place of the mask, (1, 1, 1, length), from `Packed.ends`: int64, (length,)."""
    return ends[None, None, None]


def packed_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers' ``sdpa_attention_forward``. query, key, value: (1, heads, length, dimension) of a packed row.

    Token i sees token j if j <= i < ends[j].
    """
    if attention_mask is None or attention_mask.dtype != torch.int64:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, **kwargs)
    global _calls
    _calls += 1
    ends = attention_mask[0, 0, 0]

    def attend(start: int, end: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # Of the earlier keys only those that a token of this block, and so its first one, can see.
        own = torch.arange(start, end, device=ends.device)
        keys = torch.cat([(ends[:start] > start).nonzero()[:, 0], own])
        visible = (ends[keys] > own[:, None]) & (keys <= own[:, None])
        found, _ = sdpa_attention_forward(
            module, query[:, :, start:end], key[:, :, keys], value[:, :, keys], visible[None, None], dropout, **kwargs
        )
        return found

    length = query.shape[2]
    blocks = [(start, min(length, start + BLOCK)) for start in range(0, length, BLOCK)]
    if len(blocks) == 1:
        return attend(0, length, query, key, value), None
    again = {"use_reentrant": False, "preserve_rng_state": dropout > 0}
    return torch.cat([checkpoint(attend, *block, query, key, value, **again) for block in blocks], 1), None


AttentionInterface.register(NAME, packed_sdpa)
AttentionMaskInterface.register(NAME, sdpa_mask)
