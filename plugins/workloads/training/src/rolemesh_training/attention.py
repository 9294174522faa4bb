"""Attention within a packed row, block by block, without a mask of length × length.

It is registered with transformers, so every model that takes its attention from there can use it. A packed row passes
the owners of its tokens in place of a mask; any other call uses transformers' own ``sdpa``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["BLOCK", "NAME", "owners", "packed_sdpa"]

NAME = "packed_sdpa"
"""Name for ``set_attn_implementation``."""
BLOCK = 512
"""Number of tokens whose masks exist at the same time. The backward pass computes the masks again, so none is kept."""


def owners(prompt: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Return the argument in place of the mask: (1, 1, 2, length), the prompt and the row of each token; -1 for tokens
    of all."""
    return torch.stack([prompt, row])[None, None]


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

    A token sees the earlier tokens that belong to the same prompt and row, or to all. Prompts lie one after another.
    """
    if attention_mask is None or attention_mask.dtype != torch.int64:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, **kwargs)
    owner = attention_mask[0, 0]
    common = int((owner[0] < 0).sum())

    def attend(start: int, end: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        # Of the keys: those common to all, and from the first one of a prompt that is in this block.
        first = start if start < common else int((owner[0] < owner[0, start]).sum())

        def near(tensor: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor[..., : min(common, first), :], tensor[..., first:end, :]], -2)

        place = torch.arange(owner.shape[1], device=owner.device)[:, None]
        theirs = near(owner[..., None]).mT
        visible = ((theirs < 0) | (theirs == owner[:, start:end, None])).all(0) & (near(place).mT <= place[start:end])
        found, _ = sdpa_attention_forward(
            module, query[:, :, start:end], near(key), near(value), visible[None, None], dropout, **kwargs
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
