"""Find the updates that taught a trainer nothing, and the reason. Uses numpy only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rolemesh.api.batch import Batch
from rolemesh_training.options import TrainerOptions

__all__ = ["Facts", "Learning", "cause", "facts"]

ADVANTAGE = "every advantage is 0"
NO_REWARD = "no row has a reward (each is NaN); see the warnings of the role that rewards"
NO_ROWS = "the batch has no rows"
OVERFLOW = "its gradients overflowed in float16"
ZERO = "every gradient is 0; look for a loss that does not depend on the weights, or for weights that need no gradient"
WEIGHTLESS = "the loss counted nothing in any row (its weight is 0)"


class Facts(NamedTuple):
    """Facts from one rank's rows about an update that taught nothing."""

    rows: int
    cause: str
    """The reason; "" if the rows show none."""
    groups: dict[int, int]
    """Number of samples by group; empty without the column `group`."""


def facts(batch: Batch | None, whole: Batch | None) -> Facts:
    """Examine the rows of an update, `batch`, which are a part of the rows of the step, `whole`; None if there are
    none."""
    if batch is None or whole is None:
        return Facts(1, "", {})
    names, counts = np.unique(np.asarray(whole["group"]), return_counts=True) if "group" in whole else ((), ())
    groups = {int(name): int(count) for name, count in zip(names, counts, strict=True)}
    if not batch.rows and whole.rows:
        return Facts(0, "the mini-batch has no rows; set mini_batches to the rows of a rank in a step, or less", groups)
    if not batch.rows:
        return Facts(0, NO_ROWS, groups)
    if any(name in batch and not _any(batch[name]) for name in ("advantage", "advantages")):
        reward = batch.get("reward")
        if isinstance(reward, np.ndarray) and reward.dtype.kind == "f" and np.isnan(reward).all():
            return Facts(batch.rows, NO_REWARD, groups)
        return Facts(batch.rows, ADVANTAGE, groups)
    if "completion_ids" in batch and not any(len(row) for row in batch["completion_ids"]):
        return Facts(batch.rows, "every completion is empty", groups)
    if "completion_mask" in batch and not _any(batch["completion_mask"]):
        return Facts(batch.rows, "`completion_mask` is 0 for every token, so the model sampled none of them", groups)
    if "input_ids" in batch:
        if all(len(row) < 2 for row in batch["input_ids"]):
            return Facts(batch.rows, "no row has a second token, which would be the first to predict", groups)
        if "loss_mask" in batch and not any(np.any(np.asarray(row)[1:]) for row in batch["loss_mask"]):
            return Facts(batch.rows, "`loss_mask` is 0 for every token that could be predicted", groups)
        if "labels" in batch and not any(np.any(np.asarray(row)[1:] != -100) for row in batch["labels"]):
            return Facts(batch.rows, "`labels` is -100 for every token that could be predicted", groups)
    return Facts(batch.rows, "", groups)


def _any(column: Any) -> bool:
    return bool(np.any(column.values)) if hasattr(column, "offsets") else bool(np.any(np.asarray(column)))


def cause(found: Sequence[Facts], otherwise: str) -> str:
    """Return why an update taught nothing, in words, from the facts of all ranks; `otherwise` if no rows show it."""
    told = list(dict.fromkeys(each.cause for each in found if each.rows)) or [
        next((each.cause for each in found if each.cause != NO_ROWS), NO_ROWS)
    ]
    if len(told) != 1 or not told[0]:
        return otherwise
    groups: dict[int, int] = {}
    for each in found:
        for name, count in each.groups.items():
            groups[name] = groups.get(name, 0) + count
    if told[0] != ADVANTAGE or not groups:
        return told[0]
    number = len(groups)
    if max(groups.values()) == 1:
        who = f"all {number} groups have" if number > 1 else "the only group has"
        return f"{who} one sample, so every advantage is 0; set samples to 2 or more"
    return (
        f"every advantage is 0 in all {number} groups, as if the rewards of each were equal; look at the reward "
        "function, or ask questions that are neither too easy nor too hard"
    )


def no_rate(options: TrainerOptions, updates: int) -> str:
    """Return why the learning rate was 0 in the last of `updates` updates."""
    end = options.schedule_updates
    if options.schedule == "constant" or end is None:
        return "the learning rate is 0; look at the scheduler"
    return (
        f"the learning rate is 0 after update {end}, the end of the schedule {options.schedule}; set schedule_updates "
        f"or min_lr_ratio higher if updates {updates} and later are to count"
    )


class Learning:
    """Number of updates that changed weights, and of those that did not, by reason. Part of the trainer's state."""

    def __init__(self) -> None:
        self.useful = 0
        self.useless: dict[str, int] = {}

    def taught_nothing(self, why: str) -> bool:
        """Count an update that changed nothing. Return True if it is the first with this reason."""
        kind = re.sub(r"\d+ (?=groups)", "", why.partition(";")[0])
        self.useless[kind] = self.useless.get(kind, 0) + 1
        return self.useless[kind] == 1

    def verdict(self) -> str:
        """Return why a job must not end as done after these updates; "" if it may, because one was useful or there were
        none."""
        if self.useful or not self.useless:
            return ""
        most = max(self.useless, key=self.useless.__getitem__)
        return f"none of {sum(self.useless.values())} updates changed a weight, most often because {most}"

    def state(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return {"useful": self.useful, "useless": dict(sorted(self.useless.items()))}

    def restore(self, state: Mapping[str, Any] | None, updates: int) -> None:
        """Restore `state`. A snapshot of an older version has none; then the former updates count as useful."""
        self.useful = int(state["useful"]) if state is not None else updates
        self.useless = {str(why): int(count) for why, count in state["useless"].items()} if state is not None else {}
