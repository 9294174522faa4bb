"""Advantages: `gae` from rewards and a critic's values, `group` within groups. Numpy only, for a flow's own roles."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rolemesh_rewards.advantages import group

__all__ = ["gae", "group"]


def gae(
    rewards: ArrayLike, values: ArrayLike, *, gamma: float = 1.0, lam: float = 0.95, sampled: ArrayLike | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Generalized advantage estimation of one completion, whose end is terminal: (advantages, returns), float32.

    Schulman et al., arXiv:1506.02438, equation 16. `rewards` and `values`: (tokens,).

    `sampled` is the row of `completion_mask`; None: the model sampled every token. Only sampled tokens are actions, one
    after the other. The results of other tokens are 0, and their rewards count for the last sampled token before them;
    before the first one, for that.
    """
    r, v = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if r.shape != v.shape:
        raise ValueError(f"{len(r)} rewards for {len(v)} values; give one of each for each completion token")
    for what, column in (("reward", r), ("value", v)):
        for token in np.flatnonzero(~np.isfinite(column))[:1]:
            raise ValueError(f"the {what} of token {token} is {column[token]}; leave the completion out")
    if sampled is not None:
        places = np.flatnonzero(np.asarray(sampled))
        found = np.zeros((2, len(r)), dtype=np.float32)
        if len(places):
            own = np.zeros(len(places))
            np.add.at(own, (np.searchsorted(places, np.arange(len(r)), side="right") - 1).clip(0), r)
            found[:, places] = gae(own, v[places], gamma=gamma, lam=lam)
        return found[0], found[1]
    errors = r + gamma * np.append(v[1:], 0.0)[: len(v)] - v
    advantages = np.zeros_like(errors)
    running = 0.0
    for i in range(len(errors) - 1, -1, -1):
        running = errors[i] + gamma * lam * running
        advantages[i] = running
    return advantages.astype(np.float32), (advantages + v).astype(np.float32)
