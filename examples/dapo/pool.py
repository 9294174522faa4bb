"""The role that fills the step's batch: it hands out questions, and keeps the answers that have an advantage."""

from itertools import pairwise

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Broadcast, Split, Workload, operator
from rolemesh.api.batch import concat


class PoolOptions(BaseModel, extra="forbid"):
    """Options of the role `pool`."""

    groups: int = Field(8, gt=0, description="questions of which the batch is full")


class Pool(Workload):
    """A role of one rank. It keeps data within a step only, which a restarted rank repeats, so it has no state."""

    Options = PoolOptions
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(questions=Broadcast())
    def begin(self, questions):
        """Start the step's batch. `questions` are the questions that `ask` may hand out."""
        self.questions, self.asked, self.kept = questions, 0, []

    @operator(returns=Split())
    def ask(self):
        """Return as many new questions as the batch still lacks groups: none once it is full."""
        start = self.asked
        self.asked = min(self.questions.rows, start + self.options.groups - len(self.kept))
        return self.questions[start : self.asked]

    @operator(scored=Broadcast())
    def keep(self, scored):
        """Keep the groups that are neither all right nor all wrong: those with an `advantage`."""
        starts = [0, *(np.flatnonzero(np.diff(scored["group"])) + 1), scored.rows]
        groups = [scored[start:end] for start, end in pairwise(starts)]
        self.kept += [group for group in groups if np.any(group["advantage"])]
        self.none = scored[:0]

    @operator(returns=Split())
    def batch(self):
        """Return the kept rows; fewer than a full batch if the rounds were not enough."""
        self.ctx.metric(asked=self.asked, groups=len(self.kept))
        return concat(self.kept or [self.none])
