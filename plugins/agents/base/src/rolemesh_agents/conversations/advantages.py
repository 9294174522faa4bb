"""Advantages of the conversations of one group. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

__all__ = ["AdvantageKind", "advantages"]

AdvantageKind: TypeAlias = Literal["group", "centered", "none"]


def advantages(rewards: Sequence[float], kind: AdvantageKind) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return one advantage for each reward of a group, as float32.

    - group: (reward - mean) / standard deviation of the group (Shao et al., "DeepSeekMath", arXiv:2402.03300, section
      4.1.2). It is 0 if all rewards are equal.
    - centered: reward - mean (Liu et al., arXiv:2503.20783, equation 3).
    - none: the reward itself.
    """
    values = np.asarray(rewards, np.float64)
    if kind != "none" and values.size:
        values = values - values.mean()
        deviation = np.sqrt(np.mean(values**2))
        if deviation <= 1e-6:
            values = np.zeros_like(values)
        elif kind == "group":
            values = values / deviation
    return values.astype(np.float32)
