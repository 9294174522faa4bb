"""The losses that come with the trainer; a job may name its own in the same form (`rolemesh_training.LossFunction`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy, log_softmax, logsigmoid

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_training.columns import every_finite, refuse, target_rows, text_rows
from rolemesh_training.contract import LossContext, LossOutput
from rolemesh_training.options import (
    CausalLMOptions,
    DistillOptions,
    DPOOptions,
    GRPOOptions,
    PolicyOptions,
    ValueOptions,
)
from rolemesh_training.packing import completion_logprobs, completion_values, row_scores
from rolemesh_training.sampling import OLD, REFERENCE, row_name, row_temperatures

__all__ = ["causal_lm", "classification", "distill", "dpo", "grpo", "ppo", "value"]

_IGNORED = -100


def causal_lm(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Next-token cross-entropy, averaged over tokens.

    Columns: `input_ids` (ragged int); optional `loss_mask` (ragged, same lengths): a token counts as a target if it is
    not 0. The first token of a row has no prediction and never counts. Rows of a Hugging Face collator work as they
    are: `labels` (same lengths, -100 for tokens that do not count) are the targets, and `attention_mask` is 0 for
    padding at either end. Raises `RolemeshError` for a column of another length, or one that cannot be used.
    """
    options = CausalLMOptions.model_validate(ctx.options)
    ids, targets = _next_tokens(batch, options.pad_to or 1)
    logits = model(input_ids=torch.from_numpy(ids).to(ctx.device), use_cache=False).logits
    wanted = torch.from_numpy(targets).to(ctx.device).flatten()
    total = cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=_IGNORED, reduction="sum")
    return LossOutput(total, float((targets != _IGNORED).sum()))


def _next_tokens(batch: Batch, width: int = 1) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows' tokens and the token after each: (rows, longest or `width`); `_IGNORED` marks those that do not
    count.

    Rows are padded on the right. The earlier tokens of a causal model do not see the padding, so no mask is needed.
    """
    rows, wanted = text_rows(batch), target_rows(batch)
    width = max(max((len(row) for row in rows), default=1), width)
    ids = np.zeros((batch.rows, width), dtype=np.int64)
    targets = np.full((batch.rows, width), _IGNORED, dtype=np.int64)
    for i, (row, counted) in enumerate(zip(rows, wanted, strict=True)):
        ids[i, : len(row)] = row
        targets[i, : max(0, len(row) - 1)] = counted[1:]
    return ids, targets


def distill(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """The student's divergence from its teacher, over the teacher's likeliest tokens, averaged over tokens.

    Hinton et al., arXiv:1503.02531, with the gradient's factor of the squared temperature; the teacher's probabilities
    are normalized over the given tokens. Columns: those of `causal_lm`, and `teacher_ids` and `teacher_logits` (ragged
    int and float, (tokens, top) per row, the likeliest first): the candidates after each token of the row. The metric
    `agreement` is the share of tokens for which student and teacher have the same likeliest token.
    """
    options = DistillOptions.model_validate(ctx.options)
    refuse(batch, "attention_mask", "labels")
    ids, targets = _next_tokens(batch)
    counted = torch.from_numpy(targets != _IGNORED)
    logits = model(input_ids=torch.from_numpy(ids).to(ctx.device), use_cache=False).logits[counted].float()
    lengths = [len(row) for row in batch["input_ids"]]
    own = torch.cat([row[:length] for row, length in zip(counted, lengths, strict=True)]) if lengths else counted[:, 0]
    names, scores = (torch.from_numpy(np.array(batch[name].values)) for name in ("teacher_ids", "teacher_logits"))
    if len(names) != len(own) or len(scores) != len(own):
        raise ValueError(f"'teacher_ids' and 'teacher_logits' have {len(names)} entries for {len(own)} tokens")
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
    return LossOutput(total, tokens, {"agreement": (agreed, tokens)})


def grpo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Group-relative policy optimization with a clipped ratio.

    Shao et al., "DeepSeekMath", arXiv:2402.03300, equation 3. By default the loss is the mean over completion tokens of
    Yu et al., "DAPO", arXiv:2503.14476; ``aggregation`` chooses another. ``ratio: sequence`` is GSPO of Zheng et al.,
    arXiv:2507.18071: its ratios are those of GSPO-token, and its loss is a mean over rows.

    Columns:

    - `prompt_ids`, `completion_ids`: ragged int.
    - `logprobs`: ragged float32, the sampler's log-probability of each completion token.
    - `advantage`: float32, (rows,).
    - `ref_logprobs`: only with `kl_coef`.
    - `sampling`: optional, a mapping per row with the parameters of the sampler. The loss computes at that temperature,
      and refuses rows that it cannot correct.

    The means are over all rows. With `kl_coef` every row is computed, because the KL penalty has a gradient in every
    row. Without it, a row whose advantage is 0 has no gradient: the loss counts its tokens and does not compute it. If
    no row of the micro-batch has an advantage, its weight is 0, and `probe_rows` of them are computed, so that the
    metrics exist at every step.
    """
    options = GRPOOptions.model_validate(ctx.options)
    every_finite(batch, "advantage")
    advantages = np.asarray(batch["advantage"], dtype=np.float32)
    live = np.arange(batch.rows) if options.kl_coef else np.flatnonzero(advantages)
    rows = live if len(live) else np.arange(min(batch.rows, options.probe_rows))
    lengths = [len(batch["completion_ids"][i]) for i in rows]
    advantage = torch.from_numpy(np.repeat(advantages[rows], lengths)).to(ctx.device)
    output = _policy(model, batch, ctx, options, rows, advantage)
    counted = float(len(batch["completion_ids"].values)) if _over_tokens(options) else float(batch.rows)
    if len(live):
        return LossOutput(output.total, counted, output.metrics)
    return LossOutput(output.total * 0.0, 0.0, output.metrics, besides=counted)


def ppo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Proximal policy optimization with a clipped ratio, averaged over completion tokens.

    Schulman et al., arXiv:1707.06347, equation 7. The columns are those of `grpo`, but `advantages` (ragged float32)
    has a value for each completion token, such as the result of `rolemesh_training.advantages.gae`.
    """
    options = PolicyOptions.model_validate(ctx.options)
    rows = np.arange(batch.rows)
    completions = [np.asarray(row) for row in batch["completion_ids"]]
    advantage = _column(batch, "advantages", rows, completions, ctx.device)
    return _policy(model, batch, ctx, options, rows, advantage)


def _policy(
    model: torch.nn.Module,
    batch: Batch,
    ctx: LossContext,
    options: PolicyOptions,
    rows: NDArray[np.int64],
    advantage: torch.Tensor,
) -> LossOutput:
    """The clipped objective over the completion tokens of `rows`, each with its advantage A.

    Per token −w · min(r A, clip(r) A). Without `importance_sampling_cap` w is 1 and r = π / π_sampler. With it,
    r = π / π_old and w = min(π_old / π_sampler, cap), where π_old is the trainer's policy before the update.
    """
    completions = [np.asarray(batch["completion_ids"][i]) for i in rows]
    cap = options.importance_sampling_cap
    temperature = row_temperatures(batch, rows, options.temperature, reweighted=cap is not None)
    new = completion_logprobs(
        model,
        [batch["prompt_ids"][i] for i in rows],
        completions,
        ctx.device,
        temperature=temperature,
        packed=options.pack,
    )
    sampled = _column(batch, "logprobs", rows, completions, ctx.device)
    seen = new.detach()
    old = sampled
    if cap is not None:
        # Before the first update of a batch the weights are those of π_old, so the pass itself has computed it.
        old = _column(batch, OLD, rows, completions, ctx.device) if OLD in batch else seen
    ratio = (new - old).exp() if options.ratio == "token" else _sequence_ratio(new, old, completions)
    low, high = 1 - options.clip, 1 + (options.clip if options.clip_high is None else options.clip_high)
    clipped = ratio.clamp(low, high)
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    tokens = float(new.numel())
    metrics: dict[str, tuple[Any, float]] = {
        "logprob_diff": (((seen if cap is None else old) - sampled).abs().sum(), tokens),
        "ratio": (ratio.detach().sum(), tokens),
        "clip_fraction": ((clipped.detach() != ratio.detach()).sum(), tokens),
        "entropy": (-seen.sum(), tokens),
    }
    if cap is not None:
        weight = (old - sampled).exp().clamp(max=cap)
        objective = objective * weight
        metrics["importance_weight"] = (weight.sum(), tokens)
        metrics["importance_capped"] = ((weight >= cap).sum(), tokens)
    losses = -objective
    if options.kl_coef:
        _same_temperature(batch, rows, temperature)
        reference = _column(batch, "ref_logprobs", rows, completions, ctx.device)
        kl = (reference - new).exp() - (reference - new) - 1
        losses = losses + options.kl_coef * kl
        metrics["kl"] = (kl.detach().sum(), tokens)
    if _over_tokens(options):
        return LossOutput(losses.sum(), tokens, metrics)
    lengths = np.array([len(completion) for completion in completions])
    divisors = np.full_like(lengths, options.aggregation_length) if options.aggregation_length else lengths
    shares = np.repeat(1.0 / np.maximum(divisors, 1), lengths)
    return LossOutput((losses * torch.from_numpy(shares).to(losses)).sum(), float(batch.rows), metrics)


def _over_tokens(options: PolicyOptions) -> bool:
    """Return whether the loss is a mean over tokens. Otherwise it is a mean over all rows, including those whose
    advantage is 0."""
    return (options.aggregation or ("token_mean" if options.ratio == "token" else "sequence_mean")) == "token_mean"


def _same_temperature(batch: Batch, rows: NDArray[np.int64], temperature: float | NDArray[np.float32]) -> None:
    """Raise `RolemeshError` for a reference whose log-probabilities have another temperature than the policy's."""
    if REFERENCE not in batch:
        return
    theirs = np.asarray(batch[REFERENCE], dtype=np.float32)[rows]
    own = np.broadcast_to(np.float32(temperature), theirs.shape)
    for row in np.flatnonzero(theirs != own)[:1]:
        raise RolemeshError(
            f"ref_logprobs were computed at temperature {theirs[row]}, the loss computes at temperature {own[row]}",
            where=row_name(batch, int(rows[row])),
            remedy="leave logprobs.temperature out of the reference's options, or set it to the rollout's temperature",
        )


def _sequence_ratio(new: torch.Tensor, old: torch.Tensor, completions: list[Any]) -> torch.Tensor:
    """The value is the completion's geometric mean of ratios; the gradient goes through each token's own."""
    lengths = [len(c) for c in completions]
    parts = zip(new.detach().split(lengths), old.split(lengths), strict=True)
    means = torch.cat([(n - o).mean().expand(len(n)) if len(n) else n for n, o in parts])
    return (means + new - new.detach()).exp()


def dpo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Direct preference optimization, averaged over pairs: Rafailov et al., arXiv:2305.18290, equation 7.

    Columns: `prompt_ids`, `chosen_ids`, `rejected_ids` (ragged int), and `ref_chosen`, `ref_rejected` (float32,
    (rows,)): the reference's log-probability of each whole completion.
    """
    options = DPOOptions.model_validate(ctx.options)
    prompts = [*batch["prompt_ids"], *batch["prompt_ids"]]
    completions = [np.asarray(row) for name in ("chosen_ids", "rejected_ids") for row in batch[name]]
    flat = completion_logprobs(
        model, prompts, completions, ctx.device, temperature=options.temperature or 1.0, packed=options.pack
    )
    sums = torch.stack([part.sum() for part in flat.split([len(c) for c in completions])])
    every_finite(batch, "ref_chosen", "ref_rejected")
    reference = np.concatenate([np.asarray(batch[name], dtype=np.float32) for name in ("ref_chosen", "ref_rejected")])
    chosen, rejected = (options.beta * (sums - torch.from_numpy(reference).to(ctx.device))).split(batch.rows)
    rows = float(batch.rows)
    metrics = {
        "margin": ((chosen - rejected).detach().sum(), rows),
        "accuracy": ((chosen > rejected).float().sum(), rows),
    }
    return LossOutput(-logsigmoid(chosen - rejected).sum(), rows, metrics)


def value(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Half the squared error of a critic (``task: value``), averaged over completion tokens.

    Columns: `prompt_ids`, `completion_ids` (ragged int), and `returns` (ragged float32: the target of the value before
    each completion token). With `clip` also `values` (the critic's, before the update): for a value that leaves the old
    one by more than `clip`, the larger of both errors counts, as in Ouyang et al., arXiv:2203.02155.
    """
    options = ValueOptions.model_validate(ctx.options)
    rows, completions = np.arange(batch.rows), [np.asarray(row) for row in batch["completion_ids"]]
    wanted = _column(batch, "returns", rows, completions, ctx.device)
    new = completion_values(model, batch["prompt_ids"], completions, ctx.device)
    error = (new - wanted).square()
    if options.clip is not None:
        old = _column(batch, "values", rows, completions, ctx.device)
        error = torch.maximum(error, ((old + (new - old).clamp(-options.clip, options.clip)) - wanted).square())
    tokens = float(new.numel())
    return LossOutput(0.5 * error.sum(), tokens, {"value": (new.detach().sum(), tokens)})


def classification(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """The error of one label per row (``task: classification``), averaged over rows.

    Columns: `input_ids` (ragged int; padded if there is an `attention_mask`), and `label` or `labels` ((rows,)):
    integers for a model of several labels (cross-entropy), numbers for a model of one (squared error).
    """
    name = "label" if "label" in batch else "labels"
    every_finite(batch, name)
    scores = row_scores(model, text_rows(batch), ctx.device)
    rows = float(batch.rows)
    if scores.shape[-1] == 1:
        wanted = torch.from_numpy(np.asarray(batch[name], dtype=np.float32)).to(ctx.device)
        return LossOutput((scores[:, 0] - wanted).square().sum(), rows)
    labels = torch.from_numpy(np.asarray(batch[name], dtype=np.int64)).to(ctx.device)
    right = (scores.detach().argmax(-1) == labels).float().sum()
    return LossOutput(cross_entropy(scores, labels, reduction="sum"), rows, {"accuracy": (right, rows)})


def _column(batch: Batch, name: str, rows: Any, completions: list[Any], device: torch.device) -> torch.Tensor:
    """Return the rows of a per-token float column, flat. Its lengths must be those of the completions."""
    every_finite(batch, name)
    values = [np.asarray(batch[name][i], dtype=np.float32) for i in rows]
    for row, value, completion in zip(rows, values, completions, strict=True):
        if len(value) != len(completion):
            what = f"{name!r} has {len(value)} entries for {len(completion)} completion tokens"
            raise ValueError(f"{row_name(batch, int(row))}: {what}")
    return torch.from_numpy(np.concatenate(values)).to(device)
