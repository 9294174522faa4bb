"""The losses that come with the trainer; a job may name its own in the same form (`rolemesh_training.LossFunction`)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, log_softmax, logsigmoid

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_training.classes import classification
from rolemesh_training.columns import (
    IGNORED,
    check_columns,
    every_finite,
    row_numbers,
    target_rows,
    text_rows,
    token_ids,
)
from rolemesh_training.completions import Completions
from rolemesh_training.contract import LossContext, LossOutput
from rolemesh_training.inputs import padded_inputs
from rolemesh_training.options import CausalLMOptions, DistillOptions, DPOOptions, ValueOptions
from rolemesh_training.packing import completion_logprobs, completion_values
from rolemesh_training.policy import grpo, ppo
from rolemesh_training.router import routers, z_loss

__all__ = ["causal_lm", "classification", "distill", "dpo", "grpo", "ppo", "value"]


def causal_lm(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Next-token cross-entropy, averaged over tokens.

    Columns: `input_ids` (ragged int); optional `loss_mask`, `completion_mask`, `assistant_masks` (ragged, same
    lengths): a token counts as a target if none of them is 0. The first token of a row has no prediction and never
    counts. Rows of a Hugging Face collator work as they are: `labels` (same lengths, -100 for tokens that do not count)
    are the targets, and `attention_mask` is 0 for padding at either end. Raises `RolemeshError` for a column of another
    length, or one that cannot be used.

    What the model's config adds to the cross-entropy counts as in transformers: the routers' loss
    (``output_router_logits``), and ``z_loss_coefficient``. Both are means over a micro-batch; the trainer's mean weighs
    them by its targets.
    """
    options = CausalLMOptions.model_validate(ctx.options)
    check_columns(batch, "causal_lm")
    rows, targets = _next_tokens(batch, options.pad_to or 1)
    with routers(model) as own:
        logits = model(**padded_inputs(model, rows, ctx.device, targets.shape[1])).logits
    wanted = torch.from_numpy(targets).to(ctx.device).flatten()
    total = cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=IGNORED, reduction="sum")
    weight = float((targets != IGNORED).sum())
    return LossOutput(own.added(total, weight) + z_loss(model, logits) * weight, weight)


def _next_tokens(batch: Batch, width: int = 1) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Return the rows' tokens, and the token after each: (rows, longest or `width`), `IGNORED` where none counts."""
    rows, wanted = text_rows(batch), target_rows(batch)
    width = max(max((len(row) for row in rows), default=1), width)
    targets = np.full((batch.rows, width), IGNORED, dtype=np.int64)
    for i, (row, counted) in enumerate(zip(rows, wanted, strict=True)):
        targets[i, : max(0, len(row) - 1)] = counted[1:]
    return rows, targets


def distill(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """The student's divergence from its teacher, over the teacher's likeliest tokens, averaged over tokens.

    Hinton et al., arXiv:1503.02531, with the gradient's factor of the squared temperature; the teacher's probabilities
    are normalized over the given tokens. Columns: those of `causal_lm`, and `teacher_ids` and `teacher_logits` (ragged
    int and float, (tokens, top) per row, the likeliest first): the candidates after each token of the row. The metric
    `agreement` is the share of tokens for which student and teacher have the same likeliest token.
    """
    options = DistillOptions.model_validate(ctx.options)
    check_columns(batch, "distill")
    rows, targets = _next_tokens(batch)
    counted = torch.from_numpy(targets != IGNORED)
    with routers(model) as routed:
        logits = model(**padded_inputs(model, rows, ctx.device)).logits[counted].float()
    lengths = [len(row) for row in rows]
    own = torch.cat([row[:length] for row, length in zip(counted, lengths, strict=True)]) if lengths else counted[:, 0]
    names, scores = (
        torch.from_numpy(np.concatenate([np.asarray(row) for row in batch[name]]))
        for name in ("teacher_ids", "teacher_logits")
    )
    if names.dim() != 2 or names.shape != scores.shape or len(names) != len(own):
        raise RolemeshError(
            f"'teacher_ids' and 'teacher_logits' have the shapes {(*names.shape,)} and {(*scores.shape,)} for "
            f"{len(own)} tokens",
            remedy="give both as (tokens, top) for each row: the teacher's likeliest tokens after each of its tokens",
        )
    every_finite(batch, "teacher_logits")
    names, scores = names[own].long().to(ctx.device), scores[own].float().to(ctx.device)
    teacher = log_softmax(scores / options.temperature, -1)
    student = log_softmax(logits / options.temperature, -1).gather(-1, names)
    total = (1 - options.alpha) * options.temperature**2 * (teacher.exp() * (teacher - student)).sum()
    if options.alpha:
        wanted = torch.from_numpy(targets)[counted].to(ctx.device)
        total = total + options.alpha * cross_entropy(logits, wanted, reduction="sum")
    tokens = float(counted.sum())
    agreed = (logits.detach().argmax(-1) == names[:, 0]).float().sum()
    return LossOutput(routed.added(total, tokens), tokens, {"agreement": (agreed, tokens)})


def dpo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Direct preference optimization, averaged over pairs: Rafailov et al., arXiv:2305.18290, equation 7.

    Columns: `prompt_ids`, `chosen_ids`, `rejected_ids` (ragged int), and `ref_chosen`, `ref_rejected` (float32,
    (rows,) or (rows, 1)): the reference's log-probability of each whole completion.
    """
    options = DPOOptions.model_validate(ctx.options)
    check_columns(batch, "dpo")
    prompts, chosen_ids, rejected_ids = (
        [token_ids(batch, name, row) for row in range(batch.rows)]
        for name in ("prompt_ids", "chosen_ids", "rejected_ids")
    )
    completions = [*chosen_ids, *rejected_ids]
    reference = np.concatenate([row_numbers(batch, name) for name in ("ref_chosen", "ref_rejected")])
    with routers(model) as own:
        flat = completion_logprobs(
            model, prompts * 2, completions, ctx.device, temperature=options.temperature or 1.0, packed=options.pack
        )
    sums = torch.stack([part.sum() for part in flat.split([len(c) for c in completions])])
    chosen, rejected = (options.beta * (sums - torch.from_numpy(reference).to(ctx.device))).split(batch.rows)
    rows = float(batch.rows)
    metrics = {
        "margin": ((chosen - rejected).detach().sum(), rows),
        "accuracy": ((chosen > rejected).float().sum(), rows),
    }
    return LossOutput(own.added(-logsigmoid(chosen - rejected).sum(), rows), rows, metrics)


def value(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Half the squared error of a critic (``task: value``), averaged over completion tokens.

    Columns: `prompt_ids`, `completion_ids` (ragged int), and `returns` (ragged float32: the target of the value before
    each completion token). With `clip` also `values` (the critic's, before the update): for a value that leaves the old
    one by more than `clip`, the larger of both errors counts, as in Ouyang et al., arXiv:2203.02155. With
    `completion_mask` only tokens that the model sampled count, as in `grpo`.
    """
    options = ValueOptions.model_validate(ctx.options)
    check_columns(batch, "value")
    found = Completions.of(batch)
    wanted = found.column("returns", ctx.device)
    new = completion_values(model, found.prompts, found.ids, ctx.device, packed=options.pack, counted=found.sampled)
    error = (new - wanted).square()
    if options.clip is not None:
        old = found.column("values", ctx.device)
        error = torch.maximum(error, ((old + (new - old).clamp(-options.clip, options.clip)) - wanted).square())
    tokens = float(new.numel())
    return LossOutput(0.5 * error.sum(), tokens, {"value": (new.detach().sum(), tokens)})
