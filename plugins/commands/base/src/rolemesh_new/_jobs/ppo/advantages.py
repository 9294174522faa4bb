"""Advantages and returns of each token, from the reward, the critic, and the distance to the reference."""

import numpy as np

from rolemesh import Batch, Ragged, RankContext
from rolemesh.api.batch import concat
from rolemesh_training.advantages import gae


class Advantages:
    def __init__(self, kl_coef: float) -> None:
        self.kl_coef = kl_coef

    def gae(self, rows: Batch, ctx: RankContext) -> Batch:
        """Add `advantages`, standardised over all tokens, and `returns`. Rows without a reward are left out."""
        rows = concat([rows[:0], *(rows[i : i + 1] for i in np.flatnonzero(np.isfinite(rows["reward"])))])
        advantages, returns = [], []
        for row in range(rows.rows):
            kl = rows["logprobs"][row] - rows["ref_logprobs"][row]
            rewards = -self.kl_coef * kl
            rewards[-1:] += rows["reward"][row]
            found = gae(rewards, rows["values"][row], gamma=1.0, lam=0.95)
            advantages.append(found[0])
            returns.append(found[1])
            ctx.metric(kl=float(kl.sum()))
        tokens = np.concatenate([np.zeros(0), *advantages])
        if tokens.size:
            advantages = [(each - tokens.mean()) / (tokens.std() + 1e-8) for each in advantages]
        columns = {"advantages": advantages, "returns": returns}
        return rows | {name: Ragged.from_rows(each, np.float32) for name, each in columns.items()}
