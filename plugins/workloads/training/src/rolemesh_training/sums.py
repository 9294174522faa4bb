"""Sums over the micro-batches of an update: by name a sum, and the weight that divides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rolemesh_training.contract import LossOutput
from rolemesh_training.staleness import LAG, histogram

__all__ = ["SQUARES", "WEIGHTS", "add", "add_lags", "add_output", "counted", "reported", "weights"]

_BESIDES = "besides"
"""Name of the sum of `LossOutput.besides`. It has no weight, so it is not reported."""
_STALENESS = "staleness"
WEIGHTS, SQUARES = "_weights", "_squares"
"""Names of the sums of importance weights and of their squares over tokens, as metrics of a loss."""


def add(sums: dict[str, list[float]], name: str, total: float, weight: float) -> None:
    """Add one sum and its weight."""
    slot = sums.setdefault(name, [0.0, 0.0])
    slot[0] += total
    slot[1] += weight


def add_output(sums: dict[str, list[float]], output: LossOutput) -> None:
    """Add the loss and the metrics of a micro-batch."""
    add(sums, "loss", float(output.total.detach()), float(output.weight))
    add(sums, _BESIDES, float(output.besides), 0.0)
    for name, (total, amount) in output.metrics.items():
        add(sums, name, float(total), float(amount))


def add_lags(sums: dict[str, list[float]], found: Sequence[NDArray[np.int64]]) -> None:
    """Add the lags of the rows' tokens, and the number in each bin of their histogram."""
    number = sum(map(len, found))
    if number:
        add(sums, _STALENESS, float(sum(int(row.sum()) for row in found)), float(number))
        for name, count in histogram(found).items():
            add(sums, name, float(count), 0.0)


def weights(sums: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Return the loss's weight, and the additional units of its mean."""
    return sums.get("loss", (0.0, 0.0))[1], sums.get(_BESIDES, (0.0, 0.0))[0]


def counted(weight: float, besides: float) -> float:
    """Return the divisor of the mean over all ranks' micro-batches; 0 if none of them teaches anything."""
    return weight + besides if weight > 0 else 0.0


def reported(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the metrics of the sums over all ranks: means, the histogram of lags as shares of the tokens, and the
    effective sample size of the importance weights.

    `effective_sample_size` is Kish's as a share of the tokens: (Σ w)² / (n Σ w²), which is 1 if all weights are equal.
    """
    means = {name: total / weight for name, (total, weight) in sums.items() if weight > 0}
    bins = [name for name in sums if name.startswith(LAG)]
    means |= {name: sums[name][0] / sums[_STALENESS][1] for name in sorted(bins)}
    first, second = means.pop(WEIGHTS, 0.0), means.pop(SQUARES, 0.0)
    return means | ({"effective_sample_size": first**2 / second} if second > 0 else {})
