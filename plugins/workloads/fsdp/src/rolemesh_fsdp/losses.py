"""The losses that come with the trainer; a job may name its own in the same form (`rolemesh_fsdp.LossFunction`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from rolemesh.api.batch import Batch, Ragged
from rolemesh_fsdp.contract import LossContext, LossOutput
from rolemesh_fsdp.options import CausalLMOptions, GRPOOptions
from rolemesh_fsdp.packing import completion_logprobs

__all__ = ["causal_lm", "grpo"]

_IGNORED = -100


def causal_lm(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Next-token cross-entropy, a mean over tokens.

    Columns: `input_ids` (ragged int); optional `loss_mask` (ragged, same lengths): a token counts as a target where it
    is not 0. The first token of a row is predicted by nothing and never counts.
    """
    options = CausalLMOptions.model_validate(ctx.options)
    rows, masks = batch["input_ids"], batch.get("loss_mask")
    width = max(max((len(row) for row in rows), default=1), options.pad_to or 1)
    ids = np.zeros((batch.rows, width), dtype=np.int64)
    targets = np.full((batch.rows, width), _IGNORED, dtype=np.int64)
    for i, row in enumerate(rows):
        row = np.asarray(row, dtype=np.int64)
        ids[i, : len(row)] = row
        counted = row[1:] if masks is None else np.where(np.asarray(masks[i])[1:] != 0, row[1:], _IGNORED)
        targets[i, : len(counted)] = counted
    # Rows are padded on the right, where a causal model's earlier tokens cannot see: no mask is needed.
    logits = model(input_ids=torch.from_numpy(ids).to(ctx.device), use_cache=False).logits
    wanted = torch.from_numpy(targets).to(ctx.device).flatten()
    total = cross_entropy(logits.flatten(0, 1).float(), wanted, ignore_index=_IGNORED, reduction="sum")
    return LossOutput(total, float((targets != _IGNORED).sum()))


def grpo(model: torch.nn.Module, batch: Batch, ctx: LossContext) -> LossOutput:
    """Group-relative policy optimization with a clipped ratio, a mean over completion tokens.

    Shao et al., "DeepSeekMath", arXiv:2402.03300, equation 3, with the token mean of Yu et al., "DAPO",
    arXiv:2503.14476. Columns: `prompt_ids`, `completion_ids` (ragged int), `logprobs` (ragged float32: the sampler's
    log-probability of each completion token), `advantage` (float32, (rows,)); with `kl_coef` also `ref_logprobs`.

    Rows without advantage have no gradient: they are neither computed nor counted. If no row of the micro-batch has
    any, `probe_rows` of them are computed with weight 0, so that the metrics exist at every step.
    """
    options = GRPOOptions.model_validate(ctx.options)
    advantages = np.asarray(batch["advantage"], dtype=np.float32)
    live = np.flatnonzero(advantages)
    rows = live if len(live) else np.arange(min(batch.rows, options.probe_rows))
    completions = [np.asarray(batch["completion_ids"][i]) for i in rows]
    new = completion_logprobs(
        model,
        [batch["prompt_ids"][i] for i in rows],
        completions,
        ctx.device,
        temperature=options.temperature,
        packed=options.pack,
    )
    old = _column(batch["logprobs"], rows, completions, "logprobs", ctx.device)
    advantage = torch.from_numpy(np.repeat(advantages[rows], [len(c) for c in completions])).to(ctx.device)
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - options.clip, 1 + options.clip)
    total = -torch.minimum(ratio * advantage, clipped * advantage).sum()
    tokens = float(new.numel())
    seen = new.detach()
    metrics: dict[str, tuple[Any, float]] = {
        "logprob_diff": ((seen - old).abs().sum(), tokens),
        "ratio": (ratio.detach().sum(), tokens),
        "clip_fraction": (((ratio.detach() - 1).abs() > options.clip).sum(), tokens),
        "entropy": (-seen.sum(), tokens),
    }
    if options.kl_coef:
        reference = _column(batch["ref_logprobs"], rows, completions, "ref_logprobs", ctx.device)
        kl = (reference - new).exp() - (reference - new) - 1
        total = total + options.kl_coef * kl.sum()
        metrics["kl"] = (kl.detach().sum(), tokens)
    if not len(live):
        return LossOutput(total * 0.0, 0.0, metrics)
    return LossOutput(total, tokens, metrics)


def _column(column: Ragged, rows: Any, completions: list[Any], name: str, device: torch.device) -> torch.Tensor:
    """The rows of a per-token float column, flat; its lengths must be the completions'."""
    values = [np.asarray(column[i], dtype=np.float32) for i in rows]
    for row, value, completion in zip(rows, values, completions, strict=True):
        if len(value) != len(completion):
            raise ValueError(f"row {row}: {name!r} has {len(value)} entries for {len(completion)} completion tokens")
    return torch.from_numpy(np.concatenate(values)).to(device)
