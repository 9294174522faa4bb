"""The learning rate of each update, as a factor of the highest one."""

from __future__ import annotations

import math

from rolemesh_training.options import TrainerOptions

__all__ = ["factor"]


def factor(options: TrainerOptions, update: int) -> float:
    """Return the factor of `lr` in update `update`, from 0: the warm-up, then the schedule's fall to `min_lr_ratio`.

    `cosine` and `linear` fall from the end of the warm-up to update `schedule_updates`. `wsd` (Hu et al., "MiniCPM",
    arXiv:2404.06395, with a linear decay) stays at 1, and falls over its last `decay_updates`.
    """
    if options.warmup_steps and update < options.warmup_steps:
        return min(1.0, (update + 1) / options.warmup_steps)
    if options.schedule == "constant":
        return 1.0
    assert options.schedule_updates is not None
    if options.schedule == "wsd":
        begins = options.schedule_updates - options.decay_updates
    else:
        begins = options.warmup_steps
    done = min(1.0, max(0.0, (update - begins) / max(1, options.schedule_updates - begins)))
    left = (1 + math.cos(math.pi * done)) / 2 if options.schedule == "cosine" else 1 - done
    return options.min_lr_ratio + (1 - options.min_lr_ratio) * left
