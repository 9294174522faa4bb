"""The workload `tasks`: it deals out the tasks of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from warnings import warn

import numpy as np
from pydantic import BaseModel, Field, model_validator

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh_agents.contract import breach
from rolemesh_agents.environment import Environment
from rolemesh_agents.workloads.deck import EMPTY, LISTED, Deck, place
from rolemesh_agents.workloads.listed import check_listed, listed_name

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["TasksOptions", "TasksWorkload"]


class TasksOptions(BaseModel, extra="forbid"):
    """Options of the workload `tasks`."""

    environment: str | None = Field(
        None, description="name of an environment under plugins.environments; null: the only one"
    )
    groups: int = Field(default=8, ge=1, description="tasks of a step")
    held_out: int = Field(default=64, ge=1, description="tasks of `held_out`: the first ones of the split eval")
    shuffle: bool = Field(default=True, description="deal the tasks out in another order in each epoch")

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, dict) and "samples" in given:
            what = "samples of the role `tasks` is not used: leave it out here. The options of the role `agent` have it"
            warn(what, FutureWarning, stacklevel=2)
            return {name: value for name, value in given.items() if name != "samples"}
        return given


class TasksWorkload(Workload):
    """Deals out tasks: each task for training once per epoch, in an order that depends on the job's seed only."""

    Options = TasksOptions
    options: TasksOptions
    deterministic = True
    env: ClassVar[Mapping[str, str]] = {"PYTHONHASHSEED": "0"}
    """Some packages make tasks from sets of strings; the roles `tasks` and `environment` must see the same ones."""

    @classmethod
    def check_flow(cls, options: TasksOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: the job file must list the environment."""
        check_listed(job, "environments", options.environment, "environment")

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`."""
        self._ctx = ctx
        self._name = listed_name(ctx.plugins, "environments", self.options.environment)
        self._environment: Environment = ctx.plugins["environments", self._name]()
        self._deck = Deck(self._environment, self._name, ctx.seed)
        self._next = 0
        """Number of tasks that all ranks together have dealt out."""
        self._order: tuple[int, Any] = -1, None
        """An epoch, and the order of its tasks: a list, or the key of `place`."""

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return `groups` tasks, one in each row.

        Columns: `task` (a task as a JSON value), `index` (int64, the task's number) and `group` (int64, one number for
        each time that a task is dealt out).
        """
        groups = self.options.groups
        mine = [self._next + group for group in self._ctx.mine(groups)]
        self._next += groups
        return self._rows("train", [self._number(group) for group in mine], mine)

    @operator(returns=Split())
    def held_out(self) -> Batch:
        """Return the first `held_out` tasks of the split eval, one in each row. The columns are those of `next`."""
        ctx = self._ctx
        size = self._deck.size("eval")
        count = self.options.held_out if size is None else min(self.options.held_out, size)
        if not count:
            what = f"the environment {self._name} has no tasks in the split eval"
            raise breach(what, remedy="leave `held_out` out of the flow")
        mine = list(ctx.mine(count))
        return self._rows("eval", mine, mine)

    def _rows(self, split: Literal["train", "eval"], numbers: list[int], groups: list[int]) -> Batch:
        tasks = [self._deck.task(split, number) for number in numbers]
        return Batch({"task": tasks, "index": np.array(numbers, np.int64), "group": np.array(groups, np.int64)})

    def _number(self, position: int) -> int:
        """Return the number of the task that is dealt out at `position`, counted from the job's begin."""
        size = self._deck.size("train")
        if size is None:
            return position
        if not size:
            raise breach(f"the environment {self._name} has no tasks in the split train", remedy=EMPTY)
        epoch, at = divmod(position, size)
        if not self.options.shuffle:
            return at
        if self._order[0] != epoch:
            rng = self._ctx.rng("tasks", epoch)
            self._order = epoch, rng.permutation(size) if size <= LISTED else rng.bytes(16)
        order = self._order[1]
        return place(at, size, order) if isinstance(order, bytes) else int(order[at])

    def snapshot(self) -> State:
        """See `Workload.snapshot`."""
        return {"next": self._next}

    def restore(self, state: State) -> None:
        """See `Workload.restore`."""
        self._next = int(state["next"])

    def teardown(self) -> None:
        """See `Workload.teardown`."""
        self._environment.close()
