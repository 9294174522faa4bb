"""Log-probabilities of completions; the common parts of rows are computed once.

Rows of one GRPO step share a long prefix (system prompt, demonstrations) and, within groups, a question. The samples of
one conversation share its first turns. `pack` puts all rows into one, as a tree of their prefixes in which each token
lies once. A token sees only its ancestors, at the position that it has in its own row. Up to rounding, the results
equal those of one row per completion. `rolemesh_training.measured` finds the models for which this does not hold; their
rows are padded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh.errors import RolemeshError
from rolemesh_training.inputs import check_scale, packed_inputs, padded_inputs, takes
from rolemesh_training.measured import fitness
from rolemesh_training.speed import extent_of, noted
from rolemesh_training.tree import Counted, Packed, pack, rows_of, targets_of, wanted_of

__all__ = ["Packed", "completion_logprobs", "completion_values", "pack", "row_scores"]

_LOG = logging.getLogger(__name__)
_SAID: set[str] = set()


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

    With `packed` the rows are packed, unless `rolemesh_training.measured.fitness` says that the model gives other
    results then; else they are padded. The trainer has measured the model at its start.

    `counted` says for each row which tokens of its completion count; only these have a result. None: all tokens. A
    model with the attention `rolemesh_training.attention.NAME` needs no mask of the squared length of the packed row.
    """
    if isinstance(temperature, np.ndarray):
        temperature = np.repeat(temperature, [int(np.sum(each)) for each in counted or map(np.ones_like, completions)])
    layout = _layout(model, prompts, completions, counted, packed, device)
    if layout is None:
        logits, source, targets = _padded(model, prompts, completions, counted, device)
        return _pick(logits, source, targets, temperature)
    some = takes(model, "logits_to_keep")
    places = {"logits_to_keep": torch.from_numpy(layout.keep).to(device)} if some else {}
    logits = model(**packed_inputs(model, layout, device), **places).logits[0]
    source = layout.source if some else layout.keep[layout.source]
    return _pick(logits, torch.from_numpy(source), torch.from_numpy(layout.targets), temperature)


def completion_values(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    device: torch.device,
    *,
    packed: bool = True,
    counted: Counted | None = None,
) -> torch.Tensor:
    """Return the result of a model with one number for each token (``task: value``) for the text before each completion
    token, or before each `counted` one: float32, (tokens,), row by row, differentiable. It takes one forward pass.
    `packed` is as in `completion_logprobs`."""
    layout = _layout(model, prompts, completions, counted, packed, device)
    if layout is None:
        logits, source, _ = _padded(model, prompts, completions, counted, device)
        return logits[:, 0].float()[source.to(device)]
    found = model(**packed_inputs(model, layout, device)).logits[0, :, 0].float()
    return found[torch.from_numpy(layout.keep[layout.source]).to(device)]


def row_scores(model: torch.nn.Module, rows: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Return a classifier's result for each row of token ids: float32, (rows, labels), differentiable. It takes one
    forward pass over rows padded on the right with the model's pad token."""
    check_scale(model, [len(row) for row in rows])
    shape = (len(rows), max((len(row) for row in rows), default=1))
    ids, mask = np.full(shape, int(model.config.pad_token_id or 0), dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    found: torch.Tensor = model(
        input_ids=noted(torch.from_numpy(ids).to(device), *extent_of(rows)),
        attention_mask=torch.from_numpy(mask).to(device),
    ).logits
    return found.float()


def _layout(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    counted: Counted | None,
    packed: bool,
    device: torch.device,
) -> Packed | None:
    """Return the rows packed, or None if they are to be padded."""
    check_scale(model, [len(prompt) + len(ids) for prompt, ids in zip(prompts, completions, strict=True)])
    if not packed:
        return None
    layout = pack(prompts, completions, counted)
    known = fitness(model, device)
    why = known.refuses(int(layout.positions.max(initial=-1)) + 1, len(layout.input_ids))
    if not why:
        return layout
    if known.kind not in _SAID:
        _SAID.add(known.kind)
        _LOG.warning("rows of a %s are padded and not packed: %s; said once", known.kind, why)
    return None


def _padded(
    model: torch.nn.Module,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    counted: Counted | None,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits of padded rows, (places, vocabulary), and for each counted token the place that predicts it and
    its id."""
    prompts, completions = rows_of(prompts, completions)
    wanted = wanted_of(completions, counted)
    rows = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    width = max(len(row) for row in rows)
    known = fitness(model, device)
    if known.unpadded and min(len(row) for row in rows) < width:
        raise RolemeshError(
            f"rows of different lengths may not be padded for a {known.kind}: {known.unpadded}",
            remedy="set micro_batch_rows to 1, so that each row is computed alone",
        )
    logits = model(**padded_inputs(model, rows, device)).logits.flatten(0, 1)
    pairs = enumerate(zip(prompts, wanted, strict=True))
    source = np.concatenate([i * width + len(prompt) - 1 + places for i, (prompt, places) in pairs])
    return logits, torch.from_numpy(source), torch.from_numpy(targets_of(completions, wanted))


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
