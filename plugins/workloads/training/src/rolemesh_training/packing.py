"""Log-probabilities of completions; the common parts of rows are computed once.

Rows of one GRPO step share a long prefix (system prompt, demonstrations) and, within groups, a question. The samples of
one conversation share its first turns. `pack` puts all rows into one, as a tree of their prefixes in which each token
lies once. A token sees only its ancestors, at the position that it has in its own row. Up to rounding, the results
equal those of one row per completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh_training import attention

__all__ = ["Packed", "completion_logprobs", "completion_values", "pack", "row_scores"]

Ids = NDArray[np.int64]
Counted = Sequence[NDArray[np.bool_]]
"""For each row, which tokens of its completion count."""


@dataclass(frozen=True)
class Packed:
    """One row of `length` tokens for a batch of prompts and completions, in the order of a walk through their tree."""

    input_ids: Ids
    """(length,)"""
    positions: Ids
    """(length,): position of each token in its own row."""
    ends: Ids
    """(length,): place after the last token that sees this one. The descendants of a token follow it directly, so token
    i sees token j if j <= i < ends[j]."""
    keep: Ids
    """(kept,): places in the row, ascending, whose logits predict a token of a completion."""
    source: Ids
    """(tokens,): for each counted completion token, in the order of the rows, the index in `keep` of the place that
    predicts it."""
    targets: Ids
    """(tokens,): the counted completion tokens."""

    def mask(self) -> NDArray[np.bool_]:
        """(length, length): [i, j] says whether token i sees token j."""
        return np.tri(len(self.input_ids), dtype=np.bool_) & (self.ends[None, :] > np.arange(len(self.ends))[:, None])


def pack(prompts: Sequence[Any], completions: Sequence[Any], counted: Counted | None = None) -> Packed:
    """Lay out rows of token ids. The last counted token of a completion predicts nothing that counts, so it and the
    tokens after it are left out.

    `counted` says which tokens of each completion are predicted; None: all of them. Raises `ValueError` if there are no
    rows, and for an empty prompt.
    """
    prompts, completions = _rows(prompts, completions)
    wanted = _wanted(completions, counted)
    rows = [
        np.concatenate([prompt, ids[: places[-1] if len(places) else 0]])
        for prompt, ids, places in zip(prompts, completions, wanted, strict=True)
    ]
    ends = np.empty(sum(map(len, rows)), dtype=np.int64)
    laid: list[Ids] = []
    positions: list[Ids] = []
    predictors: dict[int, Ids] = {}
    firsts: list[int] = []
    previous = path = np.zeros(0, dtype=np.int64)
    length = 0
    # In lexicographic order a row shares its longest prefix with the row before it. Big-endian bytes have that order.
    for row in sorted(range(len(rows)), key=lambda row: rows[row].astype(">i8").tobytes()):
        ids = rows[row]
        shared = _shared(previous, ids)
        ends[path[shared:]] = length
        path = np.concatenate([path[:shared], np.arange(length, length + len(ids) - shared)])
        laid.append(ids[shared:])
        positions.append(np.arange(shared, len(ids)))
        length += len(ids) - shared
        before = len(prompts[row]) - 1
        firsts.append(int(path[before]))
        predictors[row] = path[before + wanted[row]]
        previous = ids
    ends[path] = length
    sources = [predictors[row] for row in range(len(rows))]
    keep = np.unique(np.concatenate([np.array(firsts), *sources])).astype(np.int64)
    return Packed(
        input_ids=np.concatenate(laid),
        positions=np.concatenate(positions),
        ends=ends[:length],
        keep=keep,
        source=np.searchsorted(keep, np.concatenate(sources)),
        targets=_targets(completions, wanted),
    )


def _wanted(completions: Sequence[Ids], counted: Counted | None) -> list[Ids]:
    """Return the places of the counted tokens in each completion."""
    if counted is None:
        return [np.arange(len(ids)) for ids in completions]
    return [np.flatnonzero(np.asarray(mask)) for mask in counted]


def _targets(completions: Sequence[Ids], wanted: Sequence[Ids]) -> Ids:
    return np.concatenate([ids[places] for ids, places in zip(completions, wanted, strict=True)])


def _shared(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix."""
    shortest = min(len(one), len(other))
    same = one[:shortest] == other[:shortest]
    return shortest if same.all() else int(same.argmin())


def _rows(prompts: Sequence[Any], completions: Sequence[Any]) -> tuple[list[Ids], list[Ids]]:
    """Return both as arrays. Raises `ValueError` if there are no rows, and for an empty prompt, because nothing
    predicts the token after it."""
    found = [[np.asarray(row, dtype=np.int64) for row in rows] for rows in (prompts, completions)]
    if not found[0]:
        raise ValueError("there are no rows to compute")
    empty = [row for row, prompt in enumerate(found[0]) if not len(prompt)]
    if empty:
        raise ValueError(f"the prompt of row {empty[0]} is empty, so nothing predicts its first completion token")
    return found[0], found[1]


def completion_logprobs(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    device: torch.device,
    *,
    temperature: float | NDArray[np.float32] = 1.0,
    packed: bool = True,
    counted: Counted | None = None,
) -> torch.Tensor:
    """Return the log-probability of each completion token given its prompt and the tokens before it: float32,
    (tokens,), row by row, differentiable. It takes one forward pass. `temperature` is one number, or one for each row.

    `counted` says for each row which tokens of its completion count; only these have a result. None: all tokens. A
    model with the attention `rolemesh_training.attention.NAME` needs no mask of the squared length of the packed row.
    """
    if isinstance(temperature, np.ndarray):
        temperature = np.repeat(temperature, [int(np.sum(each)) for each in counted or map(np.ones_like, completions)])
    if not packed:
        return _padded(model, prompts, completions, device, temperature, counted)
    layout = pack(prompts, completions, counted)
    logits = model(
        **_inputs(model, layout, device), logits_to_keep=torch.from_numpy(layout.keep).to(device), use_cache=False
    ).logits[0]
    return _pick(logits, torch.from_numpy(layout.source), torch.from_numpy(layout.targets), temperature)


def completion_values(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    device: torch.device,
    *,
    counted: Counted | None = None,
) -> torch.Tensor:
    """Return the result of a model with one number for each token (``task: value``) for the text before each completion
    token, or before each `counted` one: float32, (tokens,), row by row, differentiable. It takes one forward pass over
    one packed row."""
    layout = pack(prompts, completions, counted)
    found = model(**_inputs(model, layout, device), use_cache=False).logits[0, :, 0].float()
    return found[torch.from_numpy(layout.keep[layout.source]).to(device)]


def row_scores(model: torch.nn.Module, rows: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return a classifier's result for each row of token ids: float32, (rows, labels), differentiable. It takes one
    forward pass over rows padded on the right with the model's pad token."""
    shape = (len(rows), max((len(row) for row in rows), default=1))
    ids, mask = np.full(shape, int(model.config.pad_token_id or 0), dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    found: torch.Tensor = model(
        input_ids=torch.from_numpy(ids).to(device), attention_mask=torch.from_numpy(mask).to(device)
    ).logits
    return found.float()


def _inputs(model: torch.nn.Module, layout: Packed, device: torch.device) -> dict[str, torch.Tensor]:
    _refuse_sliding_window(model, int(layout.positions.max(initial=0)) + 1)
    if model.config._attn_implementation == attention.NAME:
        mask = attention.argument(torch.from_numpy(layout.ends).to(device))
    else:
        visible = torch.from_numpy(layout.mask()).to(device)[None, None]
        mask = torch.zeros(visible.shape, device=device).masked_fill_(~visible, torch.finfo(torch.float32).min)
    return {
        "input_ids": _row(layout.input_ids, device),
        "attention_mask": mask,
        "position_ids": _row(layout.positions, device),
    }


def _padded(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    device: torch.device,
    temperature: float | NDArray[np.float32],
    counted: Counted | None,
) -> torch.Tensor:
    prompts, completions = _rows(prompts, completions)
    wanted = _wanted(completions, counted)
    rows = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    width = max(len(row) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    logits = model(input_ids=torch.from_numpy(ids).to(device), use_cache=False).logits.flatten(0, 1)
    pairs = enumerate(zip(prompts, wanted, strict=True))
    source = np.concatenate([i * width + len(prompt) - 1 + places for i, (prompt, places) in pairs])
    targets = torch.from_numpy(_targets(completions, wanted))
    return _pick(logits, torch.from_numpy(source), targets, temperature)


def _pick(
    logits: torch.Tensor, source: torch.Tensor, targets: torch.Tensor, temperature: float | NDArray[np.float32]
) -> torch.Tensor:
    """Return log softmax(logits / temperature)[source, targets] without materialising the log-probabilities.

    `temperature` is one number, or one for each target.
    """
    if isinstance(temperature, np.ndarray):
        groups = [torch.from_numpy(np.flatnonzero(temperature == each)) for each in np.unique(temperature)]
        found = [_pick(logits, source[at], targets[at], float(temperature[at[0]])) for at in groups]
        order = torch.cat(groups).argsort()
        return torch.cat(found)[order.to(logits.device)]
    source, targets = source.to(logits.device), targets.to(logits.device)
    logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    return logits[source, targets] - logits.logsumexp(-1)[source]


def _row(ids: Ids, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(ids)[None].to(device)


def _refuse_sliding_window(model: torch.nn.Module, longest: int) -> None:
    config = model.config
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if window and longest > window and (kinds is None or any("sliding" in kind for kind in kinds)):
        raise ValueError(
            f"a row of {longest} tokens is longer than the model's sliding window of {window}, which a packed mask "
            "would ignore; set loss_options.pack to false"
        )
