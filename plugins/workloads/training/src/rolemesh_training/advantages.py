"""Advantages and returns from rewards and a critic's values; numpy only, for a flow's own roles."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["gae"]


def gae(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Generalized advantage estimation of one completion, whose end is terminal: (advantages, returns), float32.

    Schulman et al., arXiv:1506.02438, equation 16. `rewards` and `values`: (tokens,).
    """
    r, v = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if r.shape != v.shape:
        raise ValueError(f"{len(r)} rewards for {len(v)} values; give one of each for each completion token")
    for what, column in (("reward", r), ("value", v)):
        for token in np.flatnonzero(~np.isfinite(column))[:1]:
            raise ValueError(f"the {what} of token {token} is {column[token]}; leave the completion out")
    errors = r + gamma * np.append(v[1:], 0.0)[: len(v)] - v
    advantages = np.zeros_like(errors)
    running = 0.0
    for i in range(len(errors) - 1, -1, -1):
        running = errors[i] + gamma * lam * running
        advantages[i] = running
    return advantages.astype(np.float32), (advantages + v).astype(np.float32)
