"""The base class of reward roles: GRPO's advantages within groups."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Broadcast
from rolemesh.api.workload import RankContext, Workload, operator
from rolemesh.errors import RolemeshError
from rolemesh_rewards.advantages import AdvantageKind, group, informative

__all__ = ["GroupedOptions", "GroupedReward"]


class GroupedOptions(BaseModel, extra="forbid"):
    """Options of every reward role."""

    scale_rewards: Literal["group", "none"] = Field(
        "group",
        description="group: `advantages` divides by the standard deviation of a group's rewards (GRPO); none: it only "
        "subtracts the group's mean (Dr. GRPO)",
    )


class GroupedReward(Workload):
    """A reward role. A subclass adds the operators that score rows."""

    ctx: RankContext
    warned = False
    """Whether it has warned of a reward that is left out."""

    @operator(samples=Broadcast(), returns=Broadcast())
    def advantages(self, samples: Batch) -> Batch:
        """Add `advantage` (float32, shape (rows,)): `reward` standardised within its `group`, or only centered.

        See `rolemesh_rewards.advantages.group`. The metric `informative_groups` is the share of groups whose rewards
        differ. A row whose reward is None, NaN or infinite gets 0 and does not count in its group; `rewards_left_out`
        counts such rows. Raises `RolemeshError` for a group with samples of different questions.
        """
        _refuse_mixed_groups(samples)
        rewards, groups = np.asarray(samples["reward"], dtype=np.float64), samples["group"]
        bad = np.flatnonzero(~np.isfinite(rewards))
        if len(bad):
            self.ctx.count(rewards_left_out=len(bad) / self.ctx.world_size)
            if not self.warned and self.ctx.rank == 0:
                self.ctx.warn(f"row {bad[0]} of group {groups[bad[0]]} is left out: its reward is {rewards[bad[0]]}")
            self.warned = True
        if samples.rows:
            self.ctx.metric(informative_groups=informative(rewards, groups))
        kind: AdvantageKind = "group" if self.options.scale_rewards == "group" else "centered"
        return samples | {"advantage": group(rewards, groups, kind)}


def _refuse_mixed_groups(samples: Batch) -> None:
    """Raise `RolemeshError` for a group whose samples answer different questions, because two prompts had the same
    `index`."""
    column = next((samples[name] for name in ("question", "entry") if name in samples), None)
    if column is None:
        return
    first: dict[int, int] = {}
    for row, number in enumerate(np.asarray(samples["group"]).tolist()):
        other = first.setdefault(number, row)
        if other != row and not np.array_equal(column[other], column[row]):
            raise RolemeshError(
                f"group {number} has samples of different prompts, in rows {other} and {row}",
                remedy="give each prompt of a step an index of its own, on all ranks of the role that numbers them",
            )
