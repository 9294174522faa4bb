"""Log-probabilities of completions; the common parts of rows are computed once.

Rows of one GRPO step share a long prefix (system prompt, demonstrations) and, within groups, a question. `pack` puts
the prefix, then each question followed by its completions, into one row. The row is a tree in which a token sees only
its ancestors, at the position that it has in its own row. Up to rounding, the results equal those of one row per
completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh_training import attention

__all__ = ["Packed", "completion_logprobs", "completion_values", "pack", "row_scores"]

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Packed:
    """One row of `length` tokens for a batch of prompts and completions."""

    input_ids: Ids
    """(length,)"""
    positions: Ids
    """Ids: (length,): position of each token in its own row."""
    prompt: Ids
    """Ids: (length,): number of the distinct prompt of each token, -1 for the common prefix."""
    row: Ids
    """Ids: (length,): number of the completion of each token, -1 for prompts."""
    keep: Ids
    """Ids: (kept,): places in the row, ascending, whose logits predict a token of a completion."""
    source: Ids
    """Ids: (tokens,): for each completion token, in the order of the rows, the index in `keep` of the place that
    predicts it."""
    targets: Ids
    """(tokens,): the completion tokens."""

    def mask(self) -> NDArray[np.bool_]:
        """(length, length): [i, j] says whether token i sees token j."""
        visible = np.tri(len(self.input_ids), dtype=np.bool_)
        for owner in (self.prompt, self.row):
            visible &= (owner[None, :] < 0) | (owner[None, :] == owner[:, None])
        return visible


def pack(prompts: Sequence[Any], completions: Sequence[Any]) -> Packed:
    """Lay out rows of token ids. The last token of a completion predicts nothing and is left out.

    Raises `ValueError` if there are no rows, and for an empty prompt.
    """
    prompts, completions = _rows(prompts, completions)
    members: dict[bytes, list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(prompt.tobytes(), []).append(i)
    prefix = _common_prefix([prompts[rows[0]] for rows in members.values()])

    pieces: list[tuple[Ids, int, int, int]] = [(prompts[0][:prefix], 0, -1, -1)]  # ids, first position, prompt, row
    length = prefix
    ends: list[int] = []
    starts: dict[int, int] = {}
    parents: dict[int, int] = {}
    for number, rows in enumerate(members.values()):
        question = prompts[rows[0]][prefix:]
        pieces.append((question, prefix, number, -1))
        length += len(question)
        end = length - 1 if len(question) else prefix - 1
        ends.append(end)
        for row in rows:
            pieces.append((completions[row][:-1], prefix + len(question), number, row))
            starts[row], parents[row] = length, end
            length += max(0, len(completions[row]) - 1)

    predictors = [
        np.concatenate([[parents[row]], np.arange(starts[row], starts[row] + len(ids) - 1)]) if len(ids) else ids
        for row, ids in enumerate(completions)
    ]
    keep = np.unique(np.concatenate([np.array(ends), *predictors])).astype(np.int64)
    return Packed(
        input_ids=np.concatenate([ids for ids, *_ in pieces]),
        positions=np.concatenate([np.arange(first, first + len(ids)) for ids, first, _, _ in pieces]),
        prompt=np.concatenate([np.full(len(ids), number) for ids, _, number, _ in pieces]),
        row=np.concatenate([np.full(len(ids), row) for ids, _, _, row in pieces]),
        keep=keep,
        source=np.searchsorted(keep, np.concatenate(predictors)),
        targets=np.concatenate(completions),
    )


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


def _common_prefix(prompts: Sequence[Ids]) -> int:
    shortest = min(len(prompt) for prompt in prompts)
    same = np.ones(shortest, dtype=np.bool_)
    for one, other in pairwise(prompts):
        same &= one[:shortest] == other[:shortest]
    return shortest if same.all() else int(same.argmin())


def completion_logprobs(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    device: torch.device,
    *,
    temperature: float | NDArray[np.float32] = 1.0,
    packed: bool = True,
) -> torch.Tensor:
    """Return the log-probability of each completion token given its prompt and the tokens before it: float32,
    (tokens,), row by row, differentiable. It takes one forward pass. `temperature` is one number, or one for each row.

    A model with the attention `rolemesh_training.attention.NAME` needs no mask of the squared length of the packed row.
    """
    if isinstance(temperature, np.ndarray):
        temperature = np.repeat(temperature, [len(completion) for completion in completions])
    if not packed:
        return _padded(model, prompts, completions, device, temperature)
    layout = pack(prompts, completions)
    logits = model(
        **_inputs(model, layout, device), logits_to_keep=torch.from_numpy(layout.keep).to(device), use_cache=False
    ).logits[0]
    return _pick(logits, torch.from_numpy(layout.source), torch.from_numpy(layout.targets), temperature)


def completion_values(
    model: torch.nn.Module, prompts: Sequence[Any], completions: Sequence[Any], device: torch.device
) -> torch.Tensor:
    """Return the result of a model with one number for each token (``task: value``) for the text before each completion
    token: float32, (tokens,), row by row, differentiable. It takes one forward pass over one packed row."""
    layout = pack(prompts, completions)
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
        mask = attention.owners(*(torch.from_numpy(part).to(device) for part in (layout.prompt, layout.row)))
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
) -> torch.Tensor:
    prompts, completions = _rows(prompts, completions)
    rows = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    width = max(len(row) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    logits = model(input_ids=torch.from_numpy(ids).to(device), use_cache=False).logits.flatten(0, 1)
    pairs = enumerate(zip(prompts, completions, strict=True))
    source = [i * width + len(p) - 1 + np.arange(len(c)) for i, (p, c) in pairs]
    targets = np.concatenate(completions)
    return _pick(logits, torch.from_numpy(np.concatenate(source)), torch.from_numpy(targets), temperature)


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
