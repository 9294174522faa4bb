"""The role that learns: DeepFM (Guo et al., arXiv:1703.04247) on the rows that servers hold. It keeps nothing."""

import numpy as np
import torch
from pydantic import BaseModel, Field

from rolemesh import Balanced, Batch, Broadcast, Split, Workload, operator
from rolemesh_embeddings import EmbeddingClient

FIELDS = ("user", "item", "kind")
DIM = 8


class WorkerOptions(BaseModel, extra="forbid"):
    """Options of the role `worker`."""

    hidden: int = Field(32, ge=1, description="width of the deep part")


class DeepFM(torch.nn.Module):
    """Each row of a table is a weight and a vector of `DIM`. The deep part's parameters are in the table `net`."""

    def __init__(self, rows, hidden):
        super().__init__()
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(len(FIELDS) * DIM, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1)
        )
        rows.hold("net", self.deep)
        self.rows = [rows]  # in a list, so that it is no part of this module

    def forward(self, batch):
        found = torch.stack([self.rows[0](field, batch[field]) for field in FIELDS], dim=1)
        first, vectors = found[..., 0].sum(1), found[..., 1:]
        pairs = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1) / 2
        return first + pairs + self.deep(vectors.flatten(1)).squeeze(1)


class Worker(Workload):
    """Takes rows by demand: what a killed worker had goes to the others."""

    Options = WorkerOptions
    deterministic = True
    preload = ("torch", "rolemesh_embeddings.client")

    def setup(self, ctx):
        self.ctx = ctx
        torch.set_num_threads(1)
        torch.manual_seed(ctx.seed)  # the same on all workers: servers hold what is learned beyond
        self.rows = EmbeddingClient()
        self.model = DeepFM(self.rows, self.options.hidden)

    @operator(clicks=Balanced(rows=512), rows=Broadcast(), returns=Split())
    def train(self, clicks: Batch, rows: Batch) -> Batch:
        """Return the sums of gradients of the loss, summed over the item's clicks."""
        self.rows.load(rows)
        clicked = torch.from_numpy(np.array(clicks["clicked"]))
        logits = self.model(clicks)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, clicked, reduction="sum")
        loss.backward()
        self.ctx.count(clicks=clicks.rows)
        self.ctx.metric(loss=float(loss.detach()) / clicks.rows)
        for name, score in (("auc", logits.detach().numpy()), ("auc_best", np.asarray(clicks["chance"]))):
            self.ctx.metric(**{name: auc(score, np.asarray(clicks["clicked"]))})
        return self.rows.gradients(clicks.rows)


def auc(score, clicked):
    """Return the area under the ROC curve (Mann and Whitney 1947); 0.5 without both classes."""
    positive = int(clicked.sum())
    if not 0 < positive < len(clicked):
        return 0.5
    ranks = np.empty(len(score))
    ranks[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    total = ranks[clicked > 0].sum() - positive * (positive + 1) / 2
    return float(total / (positive * (len(score) - positive)))
