"""The data role: questions of a reasoning-gym task as chats, each training item exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, Field

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh.errors import OptionsError
from rolemesh_reasoning_gym.tasks import ENV, check_task, make_dataset

__all__ = ["DataOptions", "ReasoningGymData"]

SEED_SPACING = 1_000_000
"""Distance between the first seeds of two job seeds. Item i of a dataset is generated from seed + i, so without it
neighbouring job seeds would share nearly all items."""

_SCAN = 1000  # items looked at per item wanted, before the task is said to have too few different questions


class DataOptions(BaseModel, extra="forbid"):
    """Options of the `reasoning-gym` workload."""

    task: str = Field(description="name of a reasoning-gym dataset")
    config: dict[str, Any] = Field(default_factory=dict, description="its settings, except `seed` and `size`")
    prompts_per_step: int = Field(8, gt=0, description="questions of one step, over all ranks")
    demonstrations: int = Field(3, ge=0, description="solved questions that precede each question, always the same")
    system: str | None = Field(None, description="system prompt; by default none, so the chat template's own is used")
    eval_size: int = Field(64, ge=0, description="held-out questions, which are never trained on")


class ReasoningGymData(Workload):
    """Returns questions of reasoning-gym. The rows of a step do not depend on the number of ranks.

    Items are used in order: first the demonstrations, then the held-out questions, then training. Items whose question
    repeats a demonstration or a held-out question are left out.
    """

    Options = DataOptions
    options: DataOptions
    deterministic = True
    preload: ClassVar[Sequence[str]] = ("reasoning_gym",)
    env: ClassVar[Mapping[str, str]] = ENV

    @classmethod
    def check(cls, options: DataOptions, world_size: int) -> None:
        """Check that the task exists and accepts the config."""
        check_task(options.task, options.config)

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx
        o = self.options
        size = o.demonstrations + o.eval_size + 2 * o.prompts_per_step * ctx.steps + _SCAN
        self.dataset = make_dataset(o.task, o.config, seed=SEED_SPACING * (ctx.seed + 1), size=size)
        self.kept_out: set[str] = set()
        self.cursor = 0
        self.demonstrations = [
            message
            for _, entry in self._take(o.demonstrations, self._unseen_with_answer)
            for message in (_user(entry["question"]), {"role": "assistant", "content": entry["answer"]})
        ]
        self.held = self._take(o.eval_size, self._unseen)

    def _take(self, count: int, wanted: Callable[[dict[str, Any]], bool]) -> list[tuple[int, dict[str, Any]]]:
        """Return the next `count` items that are `wanted`, with their numbers."""
        taken: list[tuple[int, dict[str, Any]]] = []
        limit = self.cursor + _SCAN * max(1, count)
        while len(taken) < count:
            if self.cursor >= limit:
                raise OptionsError(
                    f"the task {self.options.task!r} has too few different questions: "
                    f"{len(taken)} of {count} found in {_SCAN * count} items",
                    where=f"role {self.ctx.role}",
                    remedy="make the task's config harder, or eval_size smaller",
                )
            entry = self.dataset[self.cursor]
            if wanted(entry):
                taken.append((self.cursor, entry))
            self.cursor += 1
        return taken

    def _unseen(self, entry: dict[str, Any]) -> bool:
        if entry["question"] in self.kept_out:
            return False
        self.kept_out.add(entry["question"])
        return True

    def _unseen_with_answer(self, entry: dict[str, Any]) -> bool:
        return entry["answer"] is not None and self._unseen(entry)

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return this rank's share, in rank order, of the next `prompts_per_step` questions.

        Columns:

        - `messages`: a list of {role, content} dicts per row.
        - `question`, `answer`: str; the answer is empty if the task has many right answers.
        - `index`: int64, the item's number, unique in the job.
        - `entry`: reasoning-gym's own dict, which the verifier needs.
        """
        items = self._take(self.options.prompts_per_step, lambda entry: entry["question"] not in self.kept_out)
        return self._rows(items)

    @operator(returns=Split())
    def held_out(self) -> Batch:
        """Return the `eval_size` held-out questions, always the same; columns as in `next`."""
        return self._rows(self.held)

    def _rows(self, items: Sequence[tuple[int, dict[str, Any]]]) -> Batch:
        mine = [items[row] for row in self.ctx.mine(len(items))]
        return Batch(
            {
                "messages": [self._messages(entry["question"]) for _, entry in mine],
                "question": [entry["question"] for _, entry in mine],
                "answer": ["" if entry["answer"] is None else str(entry["answer"]) for _, entry in mine],
                "index": np.array([number for number, _ in mine], dtype=np.int64),
                "entry": [entry for _, entry in mine],
            }
        )

    def _messages(self, question: str) -> list[dict[str, str]]:
        system = self.options.system
        head = [] if system is None else [{"role": "system", "content": system}]
        return [*head, *self.demonstrations, _user(question)]

    def snapshot(self) -> State:
        """Return `cursor`, the number of the first unused item."""
        return {"cursor": self.cursor}

    def restore(self, state: State) -> None:
        self.cursor = int(state["cursor"])


def _user(question: str) -> dict[str, str]:
    return {"role": "user", "content": question}
