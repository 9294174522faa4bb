"""The policy losses: columns of a batch to an objective. `rolemesh_training.losses` exports them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError
from rolemesh_training.columns import check_columns, row_numbers
from rolemesh_training.completions import Completions
from rolemesh_training.contract import LossContext, LossOutput
from rolemesh_training.objective import importance_weights, objective, ratios
from rolemesh_training.options import GRPOOptions, PolicyOptions
from rolemesh_training.packing import completion_logprobs
from rolemesh_training.router import counts_tokens, routers
from rolemesh_training.sampling import OLD, REFERENCE, row_name, row_temperatures
from rolemesh_training.sums import SQUARES, WEIGHTS

__all__ = ["grpo", "ppo"]


def grpo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Group-relative policy optimization with a clipped ratio.

    Shao et al., "DeepSeekMath", arXiv:2402.03300, equation 3. By default the loss is the mean over completion tokens of
    Yu et al., "DAPO", arXiv:2503.14476; ``aggregation`` chooses another. ``ratio: sequence`` is GSPO of Zheng et al.,
    arXiv:2507.18071: its ratios are those of GSPO-token, and its loss is a mean over rows. ``objective: cispo`` is that
    of MiniMax-M1, arXiv:2506.13585. ``importance_sampling`` corrects for the policy of the sampler.

    Columns:

    - `prompt_ids`, `completion_ids`: ragged int.
    - `logprobs`: ragged float32, the sampler's log-probability of each completion token.
    - `advantage`: float32, (rows,).
    - `completion_mask`: optional, ragged: 1 for a token that the model sampled, 0 for one that an environment, a tool
      or the chat template wrote. A token with 0 is context: it is not trained, and no mean, metric or length counts it.
    - `ref_logprobs`: only with `kl_coef`.
    - `sampling`: optional, a mapping per row with the parameters of the sampler. The loss computes at that temperature,
      and refuses rows that it cannot correct.

    The means are over all rows. With `kl_coef` every row is computed, because the KL penalty has a gradient in every
    row; so has a routers' loss (`rolemesh_training.router`). Without either, a row whose advantage is 0 has no
    gradient: the loss counts its tokens and does not compute it. If no row of the micro-batch has an advantage, its
    weight is 0, and `probe_rows` of them are computed, so that the metrics exist at every step.
    """
    options = GRPOOptions.model_validate(ctx.options)
    check_columns(batch, "grpo")
    advantages = row_numbers(batch, "advantage")
    live = np.arange(batch.rows) if options.kl_coef or counts_tokens(model) else np.flatnonzero(advantages)
    rows = live if len(live) else np.arange(min(batch.rows, options.probe_rows))
    found = Completions.of(batch, rows)
    advantage = torch.from_numpy(np.repeat(advantages[rows], found.lengths)).to(ctx.device)
    with routers(model) as own:
        output = _policy(model, found, ctx, options, advantage)
    counted = float(sum(Completions.of(batch).lengths)) if _over_tokens(options) else float(batch.rows)
    if len(live):
        return LossOutput(own.added(output.total, counted), counted, output.metrics)
    return LossOutput(output.total * 0.0, 0.0, output.metrics, besides=counted)


def ppo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Proximal policy optimization with a clipped ratio, averaged over completion tokens.

    Schulman et al., arXiv:1707.06347, equation 7. The columns are those of `grpo`, but `advantages` (ragged float32)
    has a value for each completion token, such as the result of `rolemesh_training.advantages.gae`.
    """
    check_columns(batch, "ppo")
    found = Completions.of(batch)
    options = PolicyOptions.model_validate(ctx.options)
    with routers(model) as own:
        output = _policy(model, found, ctx, options, found.column("advantages", ctx.device))
    return LossOutput(own.added(output.total, float(output.weight)), output.weight, output.metrics)


def _policy(
    model: torch.nn.Module, found: Completions, ctx: LossContext, options: PolicyOptions, advantage: torch.Tensor
) -> LossOutput:
    """The negative objective over the sampled tokens, each with its advantage A; see `rolemesh_training.objective`.

    Without a correction the ratio is π / π_sampler. With one it is π / π_old, and the importance weight π_old /
    π_sampler multiplies the objective, where π_old is the trainer's policy before the update.
    """
    temperature = row_temperatures(found.batch, found.rows, options.temperature, reweighted=options.corrects)
    new = completion_logprobs(
        model, found.prompts, found.ids, ctx.device, temperature=temperature, packed=options.pack, counted=found.sampled
    )
    sampled, lengths = found.column("logprobs", ctx.device), found.lengths
    old, seen = sampled, new.detach()
    if options.corrects:
        # Before the first update of a batch the weights are those of π_old, so the pass itself has computed it.
        old = found.column(OLD, ctx.device) if OLD in found.batch else seen
    ratio = ratios(new, old, lengths, options)
    objectives, outside = objective(ratio, new, advantage, options)
    tokens = float(new.numel())
    metrics: dict[str, tuple[Any, float]] = {
        "logprob_diff": (((old if options.corrects else seen) - sampled).abs().sum(), tokens),
        "ratio": (ratio.detach().sum(), tokens),
        "clip_fraction": (outside.sum(), tokens),
        "entropy": (-seen.sum(), tokens),
    }
    weight = (seen - sampled).exp()
    if options.corrects:
        weight, capped = importance_weights(old, sampled, lengths, options)
        objectives = objectives * weight
        metrics["importance_weight"] = (weight.sum(), tokens)
        metrics["importance_capped"] = (capped.sum(), tokens)
    metrics |= {WEIGHTS: (weight.sum(), tokens), SQUARES: (weight.square().sum(), tokens)}
    losses = -objectives
    if options.kl_coef:
        _same_temperature(found.batch, found.rows, temperature)
        reference = found.column("ref_logprobs", ctx.device)
        kl = (reference - new).exp() - (reference - new) - 1
        losses = losses + options.kl_coef * kl
        metrics["kl"] = (kl.detach().sum(), tokens)
    return _aggregated(losses, lengths, options, metrics)


def _aggregated(
    losses: torch.Tensor, lengths: list[int], options: PolicyOptions, metrics: dict[str, tuple[Any, float]]
) -> LossOutput:
    """The sum of the tokens' losses that the option `aggregation` says."""
    if _over_tokens(options):
        return LossOutput(losses.sum(), float(losses.numel()), metrics)
    each = np.array(lengths)
    divisors = np.full_like(each, options.aggregation_length) if options.aggregation_length else each
    shares = np.repeat(1.0 / np.maximum(divisors, 1), each)
    return LossOutput((losses * torch.from_numpy(shares).to(losses)).sum(), float(len(each)), metrics)


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
