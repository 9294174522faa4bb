"""The role between the scores and the two trainers: a reward for each token, advantages and returns."""

import numpy as np
from pydantic import BaseModel, Field

from rolemesh import Broadcast, Ragged, Workload, operator
from rolemesh.api.batch import concat
from rolemesh_training.advantages import gae


class AdvantagesOptions(BaseModel, extra="forbid"):
    """Options of the role `advantages`."""

    kl_coef: float = Field(0.02, ge=0, description="what each token's distance from the reference costs")
    gamma: float = Field(1.0, gt=0, le=1, description="discount per token")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of generalized advantage estimation")


class Advantages(Workload):
    """A stateless role. It gets all rows, so that it can standardise over them."""

    Options = AdvantagesOptions
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx

    @operator(batch=Broadcast(), returns=Broadcast())
    def gae(self, batch):
        """Add `advantages` (standardised over all tokens) and `returns` (ragged float32).

        Needs `logprobs`, `ref_logprobs`, `values` (ragged float32, a number for each completion token) and `reward`
        (float32, (rows,)), which is the last token's. Rows without a reward (NaN) are left out.
        """
        judged = [batch[row : row + 1] for row in np.flatnonzero(np.isfinite(batch["reward"]))]
        batch = batch if len(judged) == batch.rows else concat([batch[:0], *judged])
        options, advantages, returns = self.options, [], []
        for row in range(batch.rows):
            kl = np.asarray(batch["logprobs"][row]) - np.asarray(batch["ref_logprobs"][row])
            rewards = -options.kl_coef * kl.astype(np.float64)
            rewards[-1:] += batch["reward"][row]  # an empty completion has no token that could have it
            found = gae(rewards, batch["values"][row], gamma=options.gamma, lam=options.lam)
            advantages.append(found[0])
            returns.append(found[1])
            self.ctx.metric(kl=float(kl.sum()))
        if advantages:
            flat = np.concatenate(advantages)
            mean, std = flat.mean(), flat.std()
            advantages = [((each - mean) / (std + 1e-8)).astype(np.float32) for each in advantages]
        columns = {"advantages": advantages, "returns": returns}
        return batch | {name: Ragged.from_rows(rows, dtype=np.float32) for name, rows in columns.items()}
