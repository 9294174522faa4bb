"""Advantages of rewards within groups. Pure; numpy only."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["AdvantageKind", "group", "informative"]

AdvantageKind: TypeAlias = Literal["group", "centered", "none"]

_EQUAL = 1e-6
"""Largest standard deviation of rewards that count as equal."""


def group(rewards: ArrayLike, groups: ArrayLike | None = None, kind: AdvantageKind = "group") -> NDArray[np.float32]:
    """Return the advantage of each reward within its group. All arrays have the shape (rows,); the result is float32.

    - group: (reward - mean) / standard deviation of the group (Shao et al., "DeepSeekMath", arXiv:2402.03300, section
      4.1.2). It is 0 in a group whose rewards are all equal. The deviation is that of the rewards themselves. TRL and
      verl use the estimate from a sample, which is larger by √(n / (n - 1)) for n rewards.
    - centered: reward - mean (Liu et al., "Dr. GRPO", arXiv:2503.20783, equation 3).
    - none: the reward itself.

    `groups`: a number for each row; None: all rows are one group. A reward that is None, NaN or infinite gets 0, and
    does not count in its group.
    """
    values, member, good = _read(rewards, groups)
    if kind == "none":
        return np.where(good, values, 0).astype(np.float32)
    centered, deviations = _centered(values, member, good)
    differs = deviations > _EQUAL
    scale = np.where(differs, 1 / np.where(differs, deviations, 1) if kind == "group" else 1, 0)
    return np.where(good, centered * scale[member], 0).astype(np.float32)


def informative(rewards: ArrayLike, groups: ArrayLike | None = None) -> float:
    """Return the share of groups whose rewards differ; 0 without rows. The arguments are those of `group`."""
    _, deviations = _centered(*_read(rewards, groups))
    return float((deviations > _EQUAL).mean()) if deviations.size else 0.0


def _read(
    rewards: ArrayLike, groups: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.bool_]]:
    """Return the rewards, with 0 for those that do not count, the group of each from 0 on, and whether it counts."""
    values = np.asarray(rewards, dtype=np.float64)
    member = np.zeros(len(values), np.intp) if groups is None else np.unique(groups, return_inverse=True)[1]
    good = np.isfinite(values)
    return np.where(good, values, 0), member, good


def _centered(
    values: NDArray[np.float64], member: NDArray[np.intp], good: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return reward - mean of its group for each row, and the standard deviation for each group."""
    sizes = np.maximum(np.bincount(member, good), 1)
    centered = np.where(good, values - (np.bincount(member, values) / sizes)[member], 0)
    return centered, np.sqrt(np.bincount(member, centered**2) / sizes)
