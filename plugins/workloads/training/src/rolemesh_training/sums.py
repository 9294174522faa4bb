"""Sums over the micro-batches of an update: by name a sum, and the weight that divides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolemesh_training.contract import LossOutput

__all__ = ["SQUARES", "WEIGHTS", "add", "add_output", "counted", "reported", "weights"]

_BESIDES = "besides"
"""Name of the sum of `LossOutput.besides`. It has no weight, so it is not reported."""
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


def weights(sums: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Return the loss's weight, and the additional units of its mean."""
    return sums.get("loss", (0.0, 0.0))[1], sums.get(_BESIDES, (0.0, 0.0))[0]


def counted(weight: float, besides: float) -> float:
    """Return the divisor of the mean over all ranks' micro-batches; 0 if none of them teaches anything."""
    return weight + besides if weight > 0 else 0.0


def reported(sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the metrics of the sums over all ranks: means, and the effective sample size of the importance weights.

    `effective_sample_size` is Kish's as a share of the tokens: (Σ w)² / (n Σ w²), which is 1 if all weights are equal.
    """
    means = {name: total / weight for name, (total, weight) in sums.items() if weight > 0}
    first, second = means.pop(WEIGHTS, 0.0), means.pop(SQUARES, 0.0)
    return means | ({"effective_sample_size": first**2 / second} if second > 0 else {})
