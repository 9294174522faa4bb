"""The workload `questions`: questions of a file, in an order that depends on the job's seed only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from pydantic import BaseModel, Field

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Split
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh.errors import OptionsError
from rolemesh_rewards.prompts import Message, PromptOption, make_prompt, question_of, text_of
from rolemesh_rewards.table import Row, read_rows

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["Questions", "QuestionsOptions"]


class QuestionsOptions(BaseModel, extra="forbid"):
    """Options of the workload `questions`."""

    data: str = Field(
        description="file with a row per question (.jsonl, .json, .csv, .parquet), or a folder of datasets' "
        "save_to_disk; relative to the job file's folder"
    )
    split: str | None = Field(None, description="split of a saved dataset that has several")
    prompt: PromptOption = Field(
        None,
        description="column with a text or a chat, a template such as '{a} + {b} = ?' ({{a}} stands for {a}), or "
        "messages with templates; by default the first of the columns prompt, messages, question, problem",
    )
    system: str | None = Field(None, description="system prompt; by default none, so the chat template's own is used")
    chat: bool = Field(
        True, description="false: the column `prompt` has the plain text, for a model without a chat template"
    )
    prompts_per_step: int = Field(8, gt=0, description="questions of one step, over all ranks")
    shuffle: bool = Field(True, description="ask in another order in each epoch; false: in the order of the file")
    held_out: float = Field(
        0.1, ge=0, description="share of the questions (below 1, at least one), or their number, kept for evaluation"
    )
    epochs: int | None = Field(
        None, gt=0, description="number of times that each question comes; then the job finishes. null: no limit"
    )


class Questions(Workload):
    """Asks the questions of a file. The rows of a step do not depend on the number of ranks.

    Each question for training comes once per epoch. A question with the text of a held-out one is never trained on.
    """

    Options = QuestionsOptions
    options: QuestionsOptions
    deterministic = True

    @classmethod
    def check_flow(cls, options: QuestionsOptions, role: str, job: CheckedJob) -> None:
        """Check that the file can be read, and that its first row has a prompt."""
        for row in read_rows(Path(job.base, options.data), options.split, most=1):
            _prompt(row, 1, options)

    def setup(self, ctx: RankContext) -> None:
        """Read the file. Raises `OptionsError` for the first row without a prompt."""
        self.ctx, options = ctx, self.options
        self.rows = read_rows(Path(ctx.base, options.data), options.split)
        self.chats = [_prompt(row, number, options) for number, row in enumerate(self.rows, 1)]
        self.digest = hashlib.sha256(msgspec.json.encode(self.rows, enc_hook=str, order="deterministic")).hexdigest()[
            :16
        ]
        self.held, self.train = self._parted()
        self.changed = False
        """Whether the file has changed since the snapshot."""
        self.asked = 0
        """Number of questions that all ranks together have asked."""
        self.order: tuple[int, Sequence[int]] = -1, ()
        """An epoch, and the order of its questions."""

    def _parted(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the held-out questions, and of those for training."""
        options, size = self.options, len(self.rows)
        if not size:
            raise OptionsError(f"{options.data} has no rows", where="data", remedy="name a file with questions")
        share = 0 < options.held_out < 1 < size
        count = max(round(options.held_out * size), 1) if share else int(options.held_out)
        held = sorted(np.random.default_rng([self.ctx.seed, size]).permutation(size)[:count].tolist())
        asked = [tuple((each["role"], text_of(each)) for each in chat) for chat in self.chats]
        prompts = {asked[number] for number in held}
        train = [number for number in range(size) if asked[number] not in prompts]
        if not train:
            what = f"all {size} questions of {options.data} are held out, with those of the same prompt"
            raise OptionsError(what, where="held_out", remedy="hold fewer out, or none: `held_out: 0`")
        return held, train

    @operator(returns=Split())
    def next(self) -> Batch:
        """Return this rank's share, in rank order, of the next `prompts_per_step` questions: fewer at the end of the
        last epoch, and none behind it, where steps go on until all ranks have met.

        Columns:

        - `messages`: the chat, a list of {role, content} per row; `prompt` instead, a text, without `chat`.
        - `question`: str, the user's last message.
        - `index`: int64, the number of the question in the order of the job, unique in it.
        - `row`: the file's own row, a dict. Reward functions get its columns.
        """
        options = self.options
        numbers = range(self.asked, self.asked + options.prompts_per_step)
        if options.epochs is not None:
            numbers = numbers[: max(options.epochs * len(self.train) - self.asked, 0)]
        self.asked += len(numbers)
        epochs = self.asked / len(self.train)
        self.ctx.metric(epoch=epochs)
        if self.changed and self.ctx.rank == 0:
            self.ctx.warn(f"{options.data} has changed since the snapshot, so its questions have another order")
        self.changed = False
        if options.epochs is not None and epochs >= options.epochs:
            self.ctx.finish(f"{options.epochs} epochs of {options.data} are asked")
        return self._batch([(number, self._at(number)) for number in numbers])

    @operator(returns=Split())
    def held_out(self) -> Batch:
        """Return the held-out questions, always the same; columns as in `next`."""
        return self._batch([(number, number) for number in self.held])

    def _at(self, number: int) -> int:
        """Return the row of the question with this number in the order of the job."""
        epoch, place = divmod(number, len(self.train))
        if self.order[0] != epoch:
            rng = np.random.default_rng([self.ctx.seed, len(self.rows), epoch])
            self.order = epoch, rng.permutation(self.train).tolist() if self.options.shuffle else self.train
        return self.order[1][place]

    def _batch(self, asked: Sequence[tuple[int, int]]) -> Batch:
        mine = [asked[row] for row in self.ctx.mine(len(asked))]
        chats = [self.chats[row] for _, row in mine]
        prompts: dict[str, Any] = {"messages": chats}
        if not self.options.chat:
            prompts = {"prompt": ["\n".join(text_of(each) for each in chat) for chat in chats]}
        return Batch(
            {
                **prompts,
                "question": [question_of(chat) for chat in chats],
                "index": np.array([number for number, _ in mine], dtype=np.int64),
                "row": [self.rows[row] for _, row in mine],
            }
        )

    def snapshot(self) -> State:
        """Return `asked`, the number of questions asked, and a digest of the file's rows."""
        return {"asked": self.asked, "digest": self.digest}

    def restore(self, state: State) -> None:
        """Go on behind the last question."""
        self.asked = int(state["asked"])
        self.changed = state["digest"] != self.digest


def _prompt(row: Row, number: int, options: QuestionsOptions) -> list[Message]:
    try:
        return make_prompt(row, options.prompt, options.system)
    except OptionsError as error:
        what = f"row {number} of {options.data}: {error.what}"
        raise OptionsError(what, where=error.where, remedy=error.remedy) from None
