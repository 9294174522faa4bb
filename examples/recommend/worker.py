"""The role that learns: DeepFM on the rows that servers hold. It keeps nothing."""

import numpy as np
import torch
from pydantic import BaseModel, Field

from rolemesh import Balanced, Batch, Broadcast, Split, Workload, operator
from rolemesh_embeddings import EmbeddingClient
from rolemesh_embeddings.deepfm import DeepFM, auc


class WorkerOptions(BaseModel, extra="forbid"):
    """Options of the role `worker`."""

    hidden: int = Field(32, ge=1, description="width of the deep part")


class Worker(Workload):
    """Takes rows by demand: what a killed worker had goes to the others."""

    Options = WorkerOptions
    deterministic = True
    preload = ("torch", "rolemesh_embeddings.deepfm")

    def setup(self, ctx):
        self.ctx = ctx
        torch.set_num_threads(1)
        self.rows = EmbeddingClient()
        self.model = DeepFM(self.rows, ("user", "item", "kind"), 8, self.options.hidden, ctx.seed)

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
            if (area := auc(score, np.asarray(clicks["clicked"]))) is not None:
                self.ctx.metric(**{name: area})
        return self.rows.gradients(clicks.rows)
