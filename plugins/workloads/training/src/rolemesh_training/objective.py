"""The formulas of policy losses, token by token: ratios, importance weights, objectives. Tensors in, tensors out.

π is the policy, π_old the trainer's policy before the update, and π_sampler the policy of the rollout, which may have
older weights. All arguments are log-probabilities of the sampled tokens, float32, (tokens,), row by row. `lengths` is
the number of tokens of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rolemesh_training.options import PolicyOptions

__all__ = ["importance_weights", "objective", "ratios"]

_MOST = 20.0
"""Maximum log of the weight of a row: a product over its tokens must not overflow."""


def ratios(new: torch.Tensor, old: torch.Tensor, lengths: Sequence[int], options: PolicyOptions) -> torch.Tensor:
    """Return the ratio π / π_old of each token.

    With ``ratio: sequence`` its value is the row's geometric mean, and its gradient goes through the token's own
    log-probability: GSPO-token, arXiv:2507.18071, equation 14.
    """
    if options.ratio == "token":
        return (new - old).exp()
    means = _per_row(new.detach() - old, lengths, torch.mean)
    return (means + new - new.detach()).exp()


def objective(
    ratio: torch.Tensor, new: torch.Tensor, advantage: torch.Tensor, options: PolicyOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each token's objective, and whether its ratio is outside the clip range.

    - ``clipped``: min(r A, clip(r, 1 − ε, 1 + ε_high) A). PPO, arXiv:1707.06347, equation 7.
    - ``cispo``: sg(min(r, 1 + ε_high)) A log π, where sg stops the gradient. MiniMax-M1, arXiv:2506.13585, equations 4
      and 5, without the lower bound, as in their experiments.
    """
    high = 1 + (options.clip if options.clip_high is None else options.clip_high)
    if options.objective == "cispo":
        weight = ratio.detach().clamp(max=high)
        return weight * advantage * new, ratio.detach() > high
    clipped = ratio.clamp(1 - options.clip, high)
    return torch.minimum(ratio * advantage, clipped * advantage), clipped.detach() != ratio.detach()


def importance_weights(
    old: torch.Tensor, sampled: torch.Tensor, lengths: Sequence[int], options: PolicyOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the importance weight of each token, and whether it reaches the cap.

    The weight is π_old / π_sampler of the token; with ``importance_sampling: sequence`` it is the product of these over
    the tokens of the row. A weight above the cap becomes the cap (``truncate``), or 0 (``mask``).
    """
    log = old - sampled
    if options.importance_sampling == "sequence":
        log = _per_row(log, lengths, torch.sum).clamp(max=_MOST)
    weight, cap = log.exp(), options.importance_sampling_cap
    if cap is None:
        return weight, torch.zeros_like(weight, dtype=torch.bool)
    if options.over_cap == "mask":
        return weight.masked_fill(weight > cap, 0.0), weight > cap
    return weight.clamp(max=cap), weight >= cap


def _per_row(
    values: torch.Tensor, lengths: Sequence[int], reduce: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return for each token the sum or mean over its row."""
    parts = values.split([*lengths])
    return torch.cat([reduce(part).expand(len(part)) if len(part) else part for part in parts])
