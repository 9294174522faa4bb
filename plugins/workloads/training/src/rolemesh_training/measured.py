"""Decide whether packed rows of a model give what its separate rows give, from its config and from a measurement.

A packed row says by its mask and its positions which tokens belong together. A model with a recurrent state, a
convolution, or positions or windows of its own does not follow these, so tokens of other rows change its results. The
measurement compares a few short rows, packed and padded, with one of them alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch

from rolemesh_training import attention
from rolemesh_training.inputs import packed_inputs, padded_inputs, takes, text_config
from rolemesh_training.router import counts_tokens
from rolemesh_training.tree import Ids, Packed, pack

__all__ = ["Fitness", "fitness", "remember", "strictest"]

_PROMPTS: Final = ((0, 1, 2), (0, 1, 2), (3, 4, 5, 6, 7))
"""Prompts of the measured rows, as places in a list of tokens. Two rows share one."""
_COMPLETIONS: Final = (9, 4, 7)
"""Number of completion tokens of each measured row: more than the kernel of a usual convolution."""
_TOKENS: Final = 28
_STATES: Final = re.compile(r"mamba|ssm|conv|linear|recurrent|rwkv|lstm|delta|hybrid")
"""Kinds of layers that carry a state along the row."""
_WINDOWS: Final = re.compile(r"sliding_window|attention_chunk|window_size")
"""Config values that say how far a token sees, and that a mask given to transformers' attention replaces."""
_PLACES: Final = re.compile(r"max_position_embeddings|n_positions|max_seq_len")
"""Config values that limit places in a row only if the model makes its own mask."""
_LIMITS: Final = re.compile(
    r"window|chunk|compress|index_topk|floor_scale|local_attention|block_size|" + _PLACES.pattern
)
"""Config values from which on a model may treat a place in a row in another way."""
_NO_LIMITS: Final = re.compile(r"layers|pattern|feed_forward|mamba|expert|rope")
_PLAIN: Final = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers that use no limit but the one in their name."""


@dataclass(frozen=True)
class Fitness:
    """Findings about packed and padded rows of a model."""

    kind: str
    """The config's model type."""
    why: str = ""
    """Reason for which no rows may be packed; "" if some may."""
    longest: int | None = None
    """Maximum number of tokens of a row in a packed row; None: no maximum."""
    length: int | None = None
    """Maximum number of tokens of a packed row; None: no maximum."""
    unpadded: str = ""
    """Reason for which rows of different lengths may not be padded; "" if they may."""

    def refuses(self, longest: int, length: int) -> str:
        """Return why rows of up to `longest` tokens may not be packed into one of `length` tokens; "" if they may."""
        if self.why:
            return self.why
        if self.longest is not None and longest > self.longest:
            return f"a row of {longest} tokens is longer than the model's window of {self.longest}"
        if self.length is not None and length > self.length:
            return f"a packed row of {length} tokens is longer than {self.length}, a limit of the model"
        return ""


_KNOWN: WeakKeyDictionary[torch.nn.Module, Fitness] = WeakKeyDictionary()


def fitness(model: torch.nn.Module, device: torch.device, most: Callable[[float], float] = float) -> Fitness:
    """Return what is known about the model. The first call measures it: three forward passes in evaluation mode, in
    half precision six.

    If parameters are divided over ranks, all ranks make the first call together, and `most` returns the largest value
    of all ranks, so that each makes the same passes.
    """
    if model not in _KNOWN:
        was = model.training
        model.eval()
        try:
            with torch.no_grad():
                _KNOWN[model] = _measured(model, device, most)
        finally:
            model.train(was)
    return _KNOWN[model]


def remember(model: torch.nn.Module, found: Fitness) -> None:
    """Take `found` as what is known about the model."""
    _KNOWN[model] = found


def strictest(found: Sequence[Fitness]) -> Fitness:
    """Return what holds on all ranks, whose devices may differ: packed only if each may, padded only if each may."""
    first = next((each for each in found if each.why), found[0])
    return replace(first, unpadded=next((each.unpadded for each in found if each.unpadded), ""))


def _measured(model: torch.nn.Module, device: torch.device, most: Callable[[float], float]) -> Fitness:
    kind = str(getattr(getattr(model, "config", None), "model_type", type(model).__name__))
    found = Fitness(kind)
    try:
        prompts, completions = _texts(model)
        padded = _padded(model, prompts, completions, device)
        single = _padded(model, prompts[1:2], completions[1:2], device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a model that takes more than tokens, with a loss of the job's own
        said = f"it does not take token ids alone ({_first(error)})"
        return replace(found, why=said, unpadded=said)
    own = padded[len(completions[0]) :][: len(completions[1])]
    rounded = _tolerance(padded) > 1e-3
    if (off := most(_off(own, single, typical=rounded))) > _tolerance(padded):
        found = replace(found, unpadded=f"padding changes the results of a row by {off:.2g} of their spread")
    if why := _stated(model, rounded=rounded):
        return replace(found, why=why)
    layout = pack(prompts, completions)
    before = attention.packed_calls()
    try:
        packed = _packed(model, layout, device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model says to a mask that it does not take
        return replace(found, why=f"it takes no packed row ({_first(error)})")
    wanted = padded
    if found.unpadded:
        wanted = torch.cat([_padded(model, [p], [c], device) for p, c in zip(prompts, completions, strict=True)])
    # A router that rounding tips over changes a few places by much; wrong positions change most.
    if (off := most(_off(packed, wanted, typical=rounded))) > _tolerance(padded):
        return replace(found, why=f"they give other results than separate rows, by {off:.2g} of their spread")
    if rounded and _leaks(model, (prompts, completions), (packed, padded), device):
        return replace(found, why="the tokens of one row change the results of another one")
    calls = attention.packed_calls() - before
    return _limited(found, model, layout, ours=calls >= int(getattr(text_config(model), "num_hidden_layers", 1 << 30)))


def _first(error: Exception) -> str:
    """Return the first line of the error."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _stated(model: torch.nn.Module, *, rounded: bool) -> str:
    """Return why the model's config or its arguments forbid packed rows; "" if they do not.

    `rounded` says that rounding may hide a difference. Then the kinds of layers count, too.
    """
    config = text_config(model)
    missing = [name for name in ("attention_mask", "position_ids") if not takes(model, name)]
    kinds = sorted({kind for kind in _layer_kinds(config) if _STATES.search(kind)}) if rounded else ()
    if missing:
        return f"it does not take {' and '.join(missing)}"
    if kinds:
        return f"its layers of the kind {', '.join(kinds)} carry a state along the row"
    if counts_tokens(model):
        return "its routers' loss (output_router_logits) counts the tokens of each row"
    return ""


def _layer_kinds(config: Any) -> list[str]:
    found = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    return [str(kind) for kind in found]


def _limited(found: Fitness, model: torch.nn.Module, layout: Packed, *, ours: bool) -> Fitness:
    """Return `found` with the limits of the config that the measured rows have not passed.

    `ours` says that each layer has taken the packed row's own mask. Then a window acts on a row, else on a place.
    """
    passed = int(layout.positions.max())
    limits = [(name, value) for name, value in _limits(text_config(model)) if value > passed]
    windows = [value for name, value in limits if ours and _WINDOWS.search(name)]
    masked = ours or bool(getattr(model, "_supports_sdpa", False))
    others = [
        value
        for name, value in limits
        if not (ours and _WINDOWS.search(name)) and not (masked and _PLACES.search(name))
    ]
    return replace(found, longest=min(windows, default=None), length=min(others, default=None))


def _limits(config: Any) -> Iterator[tuple[str, int]]:
    """Yield the config's values, by name, from which on a model may treat a place in another way."""
    kinds = {*_layer_kinds(config)}
    unused = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}
    for name, found in config.to_dict().items():
        values = [*found.values()] if isinstance(found, dict) else [found]
        if not _LIMITS.search(name) or _NO_LIMITS.search(name):
            continue
        if not kinds or not kinds <= _PLAIN or unused.get(name, name) in {*kinds, name}:
            yield from ((name, value) for value in values if type(value) is int and value > 1)


def _texts(model: torch.nn.Module) -> tuple[list[Ids], list[Ids]]:
    """Return prompts and completions of ordinary tokens."""
    config = text_config(model)
    special = {v for name, v in config.to_dict().items() if "token" in name and type(v) is int}
    ordinary = np.array([i for i in range(int(config.vocab_size)) if i not in special] or [0], dtype=np.int64)
    tokens = ordinary[np.linspace(0, len(ordinary) - 1, _TOKENS).astype(np.int64)]
    most = int(getattr(config, "max_position_embeddings", None) or 1 << 30)
    prompts = [tokens[list(places)] for places in _PROMPTS]
    ends = np.cumsum([len(_PROMPTS[0]) + len(_PROMPTS[2]), *_COMPLETIONS])
    found = [tokens[start:end] for start, end in pairwise(ends)]
    return prompts, [row[: max(1, most - len(prompt))] for prompt, row in zip(prompts, found, strict=True)]


def _packed(model: torch.nn.Module, layout: Packed, device: torch.device) -> torch.Tensor:
    """Return the results at the place before each completion token: (tokens, results)."""
    logits = model(**packed_inputs(model, layout, device)).logits[0]
    found: torch.Tensor = logits[torch.from_numpy(layout.keep[layout.source]).to(logits.device)]
    return found


def _padded(
    model: torch.nn.Module, prompts: Sequence[Ids], completions: Sequence[Ids], device: torch.device
) -> torch.Tensor:
    """Return the same of padded rows."""
    rows = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    logits = model(**padded_inputs(model, rows, device)).logits
    pairs = zip(logits, prompts, rows, strict=True)
    return torch.cat([found[len(prompt) - 1 : len(row) - 1] for found, prompt, row in pairs])


def _off(found: torch.Tensor, wanted: torch.Tensor, *, typical: bool = False) -> float:
    """Return the largest distance of a place's results from the wanted ones, or the median of all places, in units of
    the spread of a place's results; infinite if there is nothing to compare."""
    one, other = found.float(), wanted.float()
    usual = (other.abs() < 1e4).all(0)  # a model may rule tokens out with a huge number
    one, other = one[:, usual], other[:, usual]
    middle = other.mean(-1 if other.shape[1] > 1 else 0, keepdim=True)
    spread = (other - middle).norm(dim=-1).mean()
    distances = (one - other).norm(dim=-1)
    off = float((distances.median() if typical else distances.max()) / spread) if spread > 0 else float("nan")
    return off if np.isfinite(off) else float("inf")


def _tolerance(results: torch.Tensor) -> float:
    """Return the part of the spread that rounding explains: 1e-4 in float32, 1/8 in bfloat16."""
    reduced = results.is_cuda and torch.backends.cuda.matmul.allow_tf32
    return max(1e-4, 16 * torch.finfo(results.dtype).eps, 1e-2 if reduced else 0.0)


def _leaks(
    model: torch.nn.Module,
    rows: tuple[list[Ids], list[Ids]],
    before: tuple[torch.Tensor, torch.Tensor],
    device: torch.device,
) -> bool:
    """Return whether other tokens in the first row change the results of the other rows: more than they do if the rows
    are apart, where only the shapes of sums within the model can differ.

    In half precision rounding hides small differences between ways to compute. The same way repeats its bits.
    """
    prompts, (first, *others) = rows
    changed = [first[::-1].copy(), *others]
    layout = pack(prompts, changed)
    pairs = ((_packed(model, layout, device), before[0]), (_padded(model, prompts, changed, device), before[1]))
    packed, apart = (_off(found[len(first) :], wanted[len(first) :]) for found, wanted in pairs)
    return packed > 8 * apart + torch.finfo(before[0].dtype).eps / 16
