"""How completions were sampled, as their rows say it, and what a policy loss may make of that. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.errors import RolemeshError

__all__ = ["COLUMN", "OLD", "REFERENCE", "faults", "named", "reshaping", "row_name", "row_temperatures"]

COLUMN = "sampling"
"""The column that says how each completion was sampled: a mapping per row, such as ``{"temperature": 0.7}``."""
OLD = "old_logprobs"
"""The column with the trainer's own log-probabilities before the update: ragged float32, one per completion token."""
REFERENCE = "ref_temperature"
"""The column with the temperature at which `ref_logprobs` were computed: float32, (rows,)."""

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
"""The values with which each parameter leaves the softmax at the temperature as it is. Of others: empty ones."""


def reshaping(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What of `sampling` makes the distribution another one than the softmax at its temperature.

    A parameter that is not known here counts, unless it is empty (None, 0, [], {}).
    """
    return {
        name: value
        for name, value in sampling.items()
        if name != "temperature" and value and value not in _NEUTRAL.get(name, ())
    }


def named(values: Mapping[str, Any]) -> str:
    """``top_p 0.7, min_tokens 4``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def row_name(batch: Batch, row: int) -> str:
    """What a reader can find the row by: its `index` in the job, or its number in `batch` with its `group`."""
    if "index" in batch:
        return f"the row with index {batch['index'][row]}"
    return f"row {row} (of group {batch['group'][row]})" if "group" in batch else f"row {row}"


def row_temperatures(
    batch: Batch, rows: Sequence[int] | NDArray[np.int64], stated: float | None, *, reweighted: bool | None = None
) -> float | NDArray[np.float32]:
    """The temperature of the distribution that the completions of `rows` were sampled from.

    It is `stated` by the options, or that of the rows; 1 where neither says one. One number if all have the same,
    else float32 of shape (rows,).

    With `reweighted` not None the rows are for a policy loss, and `RolemeshError` is raised for those that it cannot
    correct: sampled at another temperature than `stated`, greedily, or, unless `reweighted`, from a distribution that
    is no plain softmax.
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
    """What a policy loss at the temperature `stated` cannot correct in `sampling`: setting, what is wrong, remedy.

    `reweighted` says that the loss corrects by importance weights. `rollout` and `loss` are what a remedy calls the
    options of the two.
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
