"""Speed of a trainer: tokens and floating-point operations per second, from the shapes of its model and rows.

Operations are the model's own (Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B): 6 for each token and parameter
that multiplies it, and for the attention of each layer 12 for each token, token of its row, and dimension of the heads.
Those of a forward pass alone are a third. Padding does not count, nor what gradient checkpointing repeats.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sized
from typing import Any, Final, NamedTuple

import numpy as np
import torch

__all__ = ["Shape", "Speed", "extent_of", "noted", "peak_of", "shape_of"]

_NOTE: Final = "rolemesh_extent"
"""Attribute of a tensor of ids with its number of tokens, without padding, and of pairs of tokens in one row."""
PEAKS: Final[Mapping[str, float]] = {
    "GB200": 2500, "B200": 2250, "H200": 989, "H100 NVL": 835, "H100 PCIE": 756, "H100": 989, "A100": 312, "A40": 149.7,
    "A30": 165, "A10": 125, "L40S": 362, "L40": 181, "L4": 121, "V100": 125, "T4": 65, "MI325X": 1307, "MI300X": 1307,
}  # fmt: skip
"""Peak of a device in TFLOP/s by words of its name, for matrices in bfloat16 (V100, T4: float16) without sparsity, from
the makers' data sheets."""
_ATTENTION: Final = ("full_attention", "sliding_attention", "chunked_attention")


class Shape(NamedTuple):
    """Numbers of a model's parameters that multiply a token, of its head, and of operations for a pair of tokens.

    `trained` are those of `body` and `head` that are trained, as shares. Of a mixture of experts only those count that
    a token takes.
    """

    body: float
    head: float
    pair: float
    trained_body: float = 1.0
    trained_head: float = 1.0

    def operations(self, tokens: float, kept: float, pairs: float, *, backward: bool) -> float:
        """Return the operations of passes over `tokens`, of which `kept` have logits, with `pairs` in their rows."""
        forward = 2 * (tokens * self.body + kept * self.head) + pairs * self.pair
        if not backward:
            return forward
        weights = 2 * (tokens * self.body * self.trained_body + kept * self.head * self.trained_head)
        return 2 * forward + weights + pairs * self.pair


class Speed:
    """Counts the forward passes of a model, and what they compute."""

    def __init__(
        self, model: torch.nn.Module, config: Any, device: torch.device, peak_tflops: float | None, parallel: int = 1
    ) -> None:
        """`config`: that of the model's text part; None for a model without one, which has no speed.

        `peak_tflops`: the peak of the device; None for that of its name. `parallel` ranks divide each layer.
        """
        self.forwards = 0
        self._parallel = parallel
        self._shape = shape_of(getattr(model, "inner", model), config) if config is not None else None
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._peak = peak_tflops or peak_of(name)
        self._began = 0.0
        self._tokens: Any = 0.0
        self._operations: Any = 0.0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def begin(self) -> None:
        """Begin to count from zero."""
        self._began = time.perf_counter()
        self._tokens = self._operations = 0.0

    def metrics(self, ranks: int) -> dict[str, float]:
        """Return the metrics of what this rank has computed since `begin`.

        Their means over the ranks are the tokens per second of all `ranks`, and the operations of one of them.
        """
        if self._shape is None:
            return {}
        tokens, operations = (
            float(self._tokens),
            float(self._operations) / self._parallel / 1e12,
        )  # waits for the device
        seconds = time.perf_counter() - self._began
        found = {"tokens_per_s": ranks * tokens / seconds, "tflops_per_s": operations / seconds}
        return found | ({"mfu": operations / seconds / self._peak} if self._peak else {})

    def _count(self, model: torch.nn.Module, args: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        self.forwards += 1
        ids = given.get("input_ids", args[0] if args else None)
        if self._shape is None or not isinstance(ids, torch.Tensor) or ids.dim() != 2:
            return
        tokens, pairs = _extent(ids, given.get("attention_mask"))
        keep = given.get("logits_to_keep", 0)
        kept = keep.numel() if isinstance(keep, torch.Tensor) else keep * ids.shape[0] or tokens
        backward = torch.is_grad_enabled()
        self._tokens += tokens if backward else 0.0
        self._operations += self._shape.operations(tokens, kept, pairs, backward=backward)


def extent_of(rows: Iterable[Sized]) -> tuple[int, int]:
    """Return the number of tokens of rows, and of pairs of tokens in one row."""
    lengths = [len(row) for row in rows]
    return sum(lengths), sum(length**2 for length in lengths)


def noted(ids: torch.Tensor, tokens: int, pairs: int) -> torch.Tensor:
    """Return `ids` with a note for `Speed`: its number of tokens, without padding, and of pairs of tokens in a row."""
    setattr(ids, _NOTE, (float(tokens), float(pairs)))
    return ids


def _extent(ids: torch.Tensor, mask: Any) -> tuple[Any, Any]:
    """Return the numbers of tokens and pairs. Those of a mask stay on their device, so that nothing waits for it."""
    known: tuple[float, float] | None = getattr(ids, _NOTE, None)
    if known is not None:
        return known
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        lengths = (mask != 0).sum(1).double()
        return lengths.sum(), (lengths**2).sum()
    rows, width = ids.shape
    return float(rows * width), float(rows * width**2)


def shape_of(model: Any, config: Any) -> Shape:
    """Return the shape of a transformers model, whole or divided among ranks."""
    embeddings = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    last = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    head = getattr(last, "weight", None)
    sizes = {True: [0.0, 0.0], False: [0.0, 0.0]}
    share = _experts(config)
    for name, each in model.named_parameters():
        size = getattr(each, "ds_shape", each.shape)  # DeepSpeed leaves an empty tensor in place of its partition
        if len(size) > 1 and (each is head or id(each) not in embeddings):
            found = sizes[each is head]
            found[0] += float(np.prod(size)) * (share if ".experts." in name else 1.0)
            found[1] += float(np.prod(size)) * (share if ".experts." in name else 1.0) * each.requires_grad
    shares = [trained / number if number else 1.0 for number, trained in (sizes[False], sizes[True])]
    return Shape(sizes[False][0], sizes[True][0], _pair(config), *shares)


def _experts(config: Any) -> float:
    """Return the share of the experts that a token takes."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    number = next((found for name in names if (found := getattr(config, name, None))), None)
    taken = getattr(config, "num_experts_per_tok", None)
    return taken / number if number and taken else 1.0


def _pair(config: Any) -> float:
    """Return the operations of a forward pass for a pair of tokens of a row, in all layers."""
    kinds: Iterable[str] | None = getattr(config, "layer_types", None)
    layers = sum(kind in _ATTENTION for kind in kinds) if kinds else getattr(config, "num_hidden_layers", 0)
    heads = getattr(config, "num_attention_heads", 0)
    usual = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(1, heads)
    keys = getattr(config, "qk_head_dim", None) or usual
    return 2.0 * layers * heads * (keys + (getattr(config, "v_head_dim", None) or keys))


def peak_of(name: str) -> float | None:
    """Return the peak of a device in TFLOP/s by its name; None for others, and for a part of a device."""
    words = set(re.split(r"[\s_-]+", name.upper()))
    found = (peak for known, peak in PEAKS.items() if words.issuperset(known.split()))
    return None if "MIG" in words else next(found, None)
