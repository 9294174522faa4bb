"""The sampling parameters that rows carry, and how a policy loss may use such rows. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError

__all__ = ["COLUMN", "OLD", "REFERENCE", "faults", "named", "reshaping", "row_name", "row_temperatures"]

COLUMN = "sampling"
"""Column with the sampling parameters of each completion: a mapping per row, such as ``{"temperature": 0.7}``."""
OLD = "old_logprobs"
"""Column with the trainer's own log-probabilities before the update: ragged float32, one per completion token."""
REFERENCE = "ref_temperature"
"""Column with the temperature at which `ref_logprobs` were computed: float32, (rows,)."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "min_tokens": (0,),
}
"""Parameter → values with which the distribution is the softmax at the temperature. For other parameters: empty
values."""


def reshaping(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `sampling` with which the distribution is not the softmax at its temperature.

    An unknown parameter counts, unless it is empty (None, 0, [], {}).
    """
    return {
        name: value
        for name, value in sampling.items()
        if name != "temperature" and value and value not in _NEUTRAL.get(name, ())
    }


def named(values: Mapping[str, Any]) -> str:
    """Return the values as text: ``top_p 0.7, min_tokens 4``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def row_name(batch: Batch, row: int) -> str:
    """Return a name by which a reader can find the row: its `index` in the job, or its number in `batch` with its
    `group`."""
    if "index" in batch:
        return f"the row with index {batch['index'][row]}"
    return f"row {row} (of group {batch['group'][row]})" if "group" in batch else f"row {row}"


def row_temperatures(
    batch: Batch, rows: Sequence[int] | NDArray[np.int64], stated: float | None, *, reweighted: bool | None = None
) -> float | NDArray[np.float32]:
    """Return the temperature of the distribution from which the completions of `rows` were sampled.

    It is `stated` by the options, or that of the rows; 1 if neither has one. One number if all are equal, else float32
    of shape (rows,).

    If `reweighted` is not None, the rows are for a policy loss. Then `RolemeshError` is raised for rows that the loss
    cannot correct: those sampled at another temperature than `stated`, greedily, or, unless `reweighted`, from a
    distribution that is not a plain softmax.
    """
    if COLUMN not in batch:
        return 1.0 if stated is None else stated
    found = np.empty(len(rows), dtype=np.float32)
    for place, row in enumerate(rows):
        sampling: Mapping[str, Any] = batch[COLUMN][row] or {}
        own = sampling.get("temperature")
        if reweighted is not None:
            for _, what, remedy in faults(sampling, stated, reweighted=reweighted):
                raise RolemeshError(what, where=row_name(batch, int(row)), remedy=remedy)
        found[place] = stated or own or 1.0
    same = len(found) == 0 or bool((found == found[0]).all())
    if same:
        return stated or (float((batch[COLUMN][rows[0]] or {}).get("temperature") or 1.0) if len(rows) else 1.0)
    return found


def faults(
    sampling: Mapping[str, Any],
    stated: float | None,
    *,
    reweighted: bool,
    rollout: str = "the rollout's options",
    loss: str = "loss_options",
) -> Iterator[tuple[str, str, str]]:
    """Yield the parameters in `sampling` that a policy loss at the temperature `stated` cannot correct: setting, fault,
    remedy.

    `reweighted` says that the loss corrects by importance weights. `rollout` and `loss` are the names of the options of
    the two in a remedy.
    """
    own = sampling.get("temperature")
    if own == 0:
        yield (
            "temperature",
            "the completions are greedy (temperature 0), so no policy loss can compare their probabilities",
            f"set temperature in {rollout} above 0, or train on them with the loss causal_lm",
        )
    elif stated is not None and own is not None and float(own) != stated:
        yield (
            "temperature",
            f"the completions are sampled at temperature {own}, the loss computes at temperature {stated}",
            f"leave temperature out of {loss}: the loss then takes that of the rows",
        )
    if not reweighted and (more := reshaping(sampling)):
        yield (
            next(iter(more)),
            f"the completions are sampled with {named(more)}, so their log-probabilities are of another distribution "
            "than the trainer's softmax",
            f"leave {', '.join(more)} out of {rollout}, or correct for it: {loss}.importance_sampling_cap=2",
        )
