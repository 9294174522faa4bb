"""The role that learns from each event once, in order."""

import numpy as np
import torch
from features import FIELDS

from rolemesh import Batch, Broadcast, Split, Workload, operator
from rolemesh_embeddings import EmbeddingClient
from rolemesh_embeddings.deepfm import DeepFM, auc

COUNTS = ("seen", "total", "clicks", "newest_at")


def network(seed):
    """Return the client of the tables, and the model on it."""
    torch.set_num_threads(1)
    rows = EmbeddingClient()
    return rows, DeepFM(rows, FIELDS, dim=8, hidden=16, seed=seed)


class Trainer(Workload):
    """A role of one rank. Its state is sums that show that each event came once; what it learns is in the tables."""

    deterministic = True
    preload = ("torch", "rolemesh_embeddings.deepfm")

    def setup(self, ctx):
        self.ctx = ctx
        self.rows, self.model = network(ctx.seed)
        self.seen, self.total, self.clicks, self.newest_at = 0, 0, 0, 0.0

    @operator(events=Broadcast(), rows=Broadcast(), returns=Split())
    def learn(self, events: Batch, rows: Batch) -> Batch:
        """Return the gradients for the columns of `Features.make`. `auc` is that of predictions before they apply."""
        self.rows.load(rows)
        if events.rows:
            clicked = np.array(events["clicked"])
            logits = self.model(events)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(clicked))
            loss.backward()
            self.seen += events.rows
            self.total += int(np.asarray(events["n"]).sum())
            self.clicks += int(clicked.sum())
            self.newest_at = max(self.newest_at, float(np.asarray(events["at"]).max()))
            self.ctx.metric(loss=float(loss.detach()))
            if (area := auc(logits.detach().numpy(), clicked)) is not None:
                self.ctx.metric(auc=area)
        self.ctx.count(events=events.rows)
        self.ctx.record(seen=self.seen, total=self.total, clicks=self.clicks)
        return self.rows.gradients() if events.rows else Batch({}, rows=0)

    @operator(returns=Broadcast())
    def newest(self) -> Batch:
        """Return the time `at` at which the newest event was sent."""
        return Batch({"at": np.array([self.newest_at])})

    def snapshot(self):
        return {name: getattr(self, name) for name in COUNTS}

    def restore(self, state):
        for name in COUNTS:
            setattr(self, name, state[name])
