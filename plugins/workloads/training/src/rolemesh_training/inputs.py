"""Rows of token ids as the arguments of a model: packed as a tree of prefixes, or padded on the right."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rolemesh_training import attention
from rolemesh_training.router import counts_tokens
from rolemesh_training.tree import Ids, Packed

__all__ = ["packed_inputs", "padded_inputs", "takes", "text_config"]


def takes(model: torch.nn.Module, name: str) -> bool:
    """Return whether the model's forward pass names the argument. DeepSpeed's model wraps it as `inner`."""
    return name in inspect.signature(getattr(model, "inner", model).forward).parameters


def text_config(model: torch.nn.Module) -> Any:
    """Return the config of the model's text part; None for a module without a config."""
    config = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def packed_inputs(model: torch.nn.Module, layout: Packed, device: torch.device) -> dict[str, Any]:
    """Return the arguments for one packed row: ids and positions (1, length), and what says which token sees which."""
    if getattr(model.config, "_attn_implementation", None) == attention.NAME:
        mask = attention.argument(torch.from_numpy(layout.ends).to(device))
    else:
        visible = torch.from_numpy(layout.mask()).to(device)[None, None]
        mask = torch.zeros(visible.shape, device=device).masked_fill_(~visible, torch.finfo(torch.float32).min)
    return {
        "input_ids": torch.from_numpy(layout.input_ids)[None].to(device),
        "attention_mask": mask,
        "position_ids": torch.from_numpy(layout.positions)[None].to(device),
        "use_cache": False,
    }


def padded_inputs(model: torch.nn.Module, rows: Sequence[Ids], device: torch.device, width: int = 1) -> dict[str, Any]:
    """Return the arguments for rows padded on the right: ids (rows, longest or `width`).

    The earlier tokens of a causal model do not see the padding, so it needs no mask. Only a router's own loss does.
    """
    shape = (len(rows), max(max((len(row) for row in rows), default=1), width))
    ids, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    found = {"input_ids": torch.from_numpy(ids).to(device), "use_cache": False}
    return found | ({"attention_mask": torch.from_numpy(mask).to(device)} if counts_tokens(model) else {})
