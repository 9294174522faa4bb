"""Rows of token ids as the arguments of a model: packed as a tree of prefixes, or padded on the right."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rolemesh.errors import RolemeshError
from rolemesh_training import attention
from rolemesh_training.router import counts_tokens
from rolemesh_training.speed import extent_of, noted
from rolemesh_training.tree import Ids, Packed

__all__ = ["check_scale", "packed_inputs", "padded_inputs", "takes", "text_config"]


def takes(model: torch.nn.Module, name: str) -> bool:
    """Return whether the model's forward pass names the argument. DeepSpeed's model wraps it as `inner`."""
    return name in inspect.signature(getattr(model, "inner", model).forward).parameters


def text_config(model: torch.nn.Module) -> Any:
    """Return the config of the model's text part; None for a module without a config."""
    config = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def check_scale(model: torch.nn.Module, lengths: Sequence[int]) -> None:
    """Raise `RolemeshError` if the model scales its rotary positions by the longest row of a pass, and one of these
    lengths would change the results of another row."""
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    for kind, limit in _scales(text_config(model)):
        said = f"a row of {longest} tokens, of more than {limit}, changes the positions of"
        if longest > limit and kind == "dynamic":
            raise RolemeshError(f"{said} later rows (rope_type: dynamic)", remedy=f"set max_length to {limit}")
        if shortest <= limit < longest:
            raise RolemeshError(
                f"{said} a row of {shortest} tokens in the same pass (rope_type: longrope)",
                remedy=f"set micro_batch_rows to 1, so that each row is computed alone, or max_length to {limit}",
            )


def _scales(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the kinds of rotary positions that depend on the longest row, each with the number of tokens up to which
    they do not."""
    given = getattr(config, "rope_parameters", None) or {}
    for each in (given, *given.values()):  # of all layers, or of each kind of layer
        kind = each.get("rope_type") if isinstance(each, dict) else None
        if kind == "longrope":
            yield kind, int(each.get("original_max_position_embeddings") or config.original_max_position_embeddings)
        elif kind == "dynamic":
            yield kind, int(config.max_position_embeddings)


def packed_inputs(model: torch.nn.Module, layout: Packed, device: torch.device) -> dict[str, Any]:
    """Return the arguments for one packed row: ids and positions (1, length), and what says which token sees which."""
    if getattr(model.config, "_attn_implementation", None) == attention.NAME:
        mask = attention.argument(torch.from_numpy(layout.ends).to(device))
    else:
        visible = torch.from_numpy(layout.mask()).to(device)[None, None]
        mask = torch.zeros(visible.shape, device=device).masked_fill_(~visible, torch.finfo(torch.float32).min)
    ids, places = torch.from_numpy(layout.input_ids)[None].to(device), layout.positions + 1
    pairs = int(2 * places.sum()) - len(places)  # of a token with those of its row, up to it or up to the row's end
    return {
        "input_ids": noted(ids, len(places), pairs),
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
    noted_ids = noted(torch.from_numpy(ids).to(device), *extent_of(rows))
    found = {"input_ids": noted_ids, "use_cache": False}
    return found | ({"attention_mask": torch.from_numpy(mask).to(device)} if counts_tokens(model) else {})
