"""The role that learns from each event once, in order, and exports the model."""

import time
from pathlib import Path

import numpy as np
from exports import clean, write_manifest, write_part
from model import Model, auc
from pydantic import BaseModel, Field

from rolemesh import Batch, Broadcast, Workload, operator

COUNTS = ("seen", "published", "total", "clicks", "newest")


class TrainerOptions(BaseModel, extra="forbid"):
    """Options of the role `trainer`."""

    folder: str = Field(
        "export", description="where exports go, relative to the run's folder; on a cluster a shared one"
    )
    deltas: int = Field(30, ge=1, description="so many deltas follow a base")
    rows: int = Field(1_000_000, ge=1, description="so many keys are kept when a base is written: those used last")


class Trainer(Workload):
    """A role of one rank. Its state is the model, sums that show that each event came once, and the list of exports."""

    Options = TrainerOptions
    deterministic = True

    def setup(self, ctx):
        self.ctx = ctx
        self.model = Model(ctx.seed)
        self.seen, self.published, self.total, self.clicks, self.newest = 0, 0, 0, 0, 0.0
        self.names, self.bases = [], []
        self.folder = Path(ctx.run_dir, self.options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    @operator(events=Broadcast())
    def learn(self, events: Batch) -> None:
        """Learn from the columns of `Features.make`. `auc` is that of predictions before the model learns."""
        if events.rows:
            clicked = np.asarray(events["clicked"])
            chance = self.model.learn(np.asarray(events["keys"]), clicked)
            self.seen += events.rows
            self.total += int(np.asarray(events["n"]).sum())
            self.clicks += int(clicked.sum())
            self.newest = max(self.newest, float(np.asarray(events["at"]).max()))
            likely = np.where(clicked > 0, chance, 1 - chance)
            self.ctx.metric(loss=float(-np.log(np.maximum(likely, 1e-7)).mean()))
            if (area := auc(chance, clicked)) is not None:
                self.ctx.metric(auc=area)
        self.ctx.count(events=events.rows)
        self.ctx.record(seen=self.seen, total=self.total, clicks=self.clicks)

    @operator(returns=Broadcast())
    def publish(self) -> Batch:
        """Write a delta since the last export, or now and then a new base; return one row with its place and time.

        The files' names have the step: a restarted rank that repeats it writes the same files again.
        """
        # A run that resumes another has a folder of its own, unless the option says where exports are.
        lost = not self.names or not all((self.folder / name).exists() for name in self.names)
        if lost or self.seen > self.published:
            step, whole = self.ctx.step, lost or len(self.names) > self.options.deltas
            if whole:
                self.model.forget(self.options.rows)
            name = write_part(self.folder, "base" if whole else "delta", step, self.model.export(whole))
            if whole:
                self.names, self.bases = [], [*self.bases[-9:], step]
            self.names.append(name)
            self.published = self.seen
            write_manifest(self.folder, step, self.names, newest=self.newest, seen=self.seen)
        return Batch({"folder": [str(self.folder)], "at": np.array([time.time()])})

    def persisted(self, step: int) -> None:
        """Remove files that are not needed: no rank goes back behind `step`."""
        clean(self.folder, before=max((base for base in self.bases if base <= step), default=0))

    def snapshot(self):
        return {
            **self.model.state(),
            **{name: getattr(self, name) for name in COUNTS},
            "names": self.names,
            "bases": self.bases,
        }

    def restore(self, state):
        self.model.load_state(state)
        for name in COUNTS:
            setattr(self, name, state[name])
        self.names, self.bases = list(state["names"]), list(state["bases"])
