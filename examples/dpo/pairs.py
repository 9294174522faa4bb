"""Pairs of answers to "reverse these words": the reversed words, and the words in their order."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh import Batch, Broadcast, Ragged, Workload, operator
from rolemesh_torch.chats import answered


class PairsOptions(BaseModel, extra="forbid"):
    """Options of the role `pairs`."""

    model: str = Field(description="folder with the tokenizer, relative to the job file")
    pairs_per_step: int = Field(8, gt=0, description="pairs that are learned from in a step")
    held_out: int = Field(32, gt=0, description="pairs that are never learned from")
    words: int = Field(3, ge=2, description="words to be reversed")

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("base", "."), model).resolve())


class Pairs(Workload):
    """A stateless role: the pairs of a step follow from its number and the job's seed."""

    Options = PairsOptions
    deterministic = True
    preload = ("reasoning_gym", "transformers.models.auto.tokenization_auto")

    def setup(self, ctx):
        import reasoning_gym
        from transformers import AutoTokenizer

        self.ctx = ctx
        words = {"min_words": self.options.words, "max_words": self.options.words}
        self.tasks = reasoning_gym.create_dataset(
            "word_sequence_reversal", seed=ctx.seed_for("pairs"), size=1_000_000, **words
        )
        self.tokenizer = AutoTokenizer.from_pretrained(self.options.model, local_files_only=True)

    @operator(returns=Broadcast())
    def next(self):
        """Return the step's pairs: rows of `prompt_ids` and `completion_ids`.

        `pair` numbers the pairs, and `right` is true for the right answer of each.
        """
        options = self.options
        first = options.held_out + self.ctx.step * options.pairs_per_step
        return self._pairs(range(first, first + options.pairs_per_step))

    @operator(returns=Broadcast())
    def held_out(self):
        """Return held-out pairs, which no step has, in the same form."""
        return self._pairs(range(self.options.held_out))

    @operator(rows=Broadcast(), returns=Broadcast())
    def join(self, rows):
        """Return a row for each pair, as the loss `dpo` needs them."""
        chosen, rejected = _pairs_among(rows)
        reference = np.array([np.sum(each) for each in rows["ref_logprobs"]], dtype=np.float32)

        def answers(name, which):
            return Ragged.from_rows([rows[name][row] for row in which], dtype=np.int32)

        return Batch(
            {
                "prompt_ids": answers("prompt_ids", chosen),
                "chosen_ids": answers("completion_ids", chosen),
                "rejected_ids": answers("completion_ids", rejected),
                "ref_chosen": reference[chosen],
                "ref_rejected": reference[rejected],
            }
        )

    @operator(rows=Broadcast(), returns=Broadcast())
    def keep(self, rows):
        """Return `rows` with the reference's log-probability of each answer, as the column `reference`."""
        return rows | {"reference": np.array([np.sum(each) for each in rows["ref_logprobs"]], dtype=np.float32)}

    @operator(rows=Broadcast())
    def judge(self, rows):
        """Report `eval_preferred`: the share of pairs whose right answer has the higher log-probability."""
        own = np.array([np.sum(each) for each in rows["ref_logprobs"]], dtype=np.float32)
        gained = own - rows["reference"]
        for right, wrong in zip(*_pairs_among(rows), strict=True):
            self.ctx.metric(
                eval_preferred=float(own[right] > own[wrong]), eval_margin=float(gained[right] - gained[wrong])
            )

    def _pairs(self, numbers):
        prompts, right, wrong = [], [], []
        for number in numbers:
            task = self.tasks[number]
            words = task["answer"].split(", ")
            asked = [{"role": "user", "content": task["question"]}]
            answers = [", ".join(words), ", ".join(words[::-1])]
            prompt, both = answered(self.tokenizer, asked, answers, {})
            for column, tokens in zip((prompts, right, wrong), (prompt, *both), strict=True):
                column.append(tokens)
        rows = {"prompt_ids": prompts * 2, "completion_ids": right + wrong}
        tokens = {name: Ragged.from_rows(each, dtype=np.int32) for name, each in rows.items()}
        return Batch({**tokens, "pair": np.array([*numbers] * 2), "right": np.repeat([True, False], len(numbers))})


def _pairs_among(rows):
    """Return the rows of right answers, and the rows of the wrong ones beside them, for complete pairs only.

    A trainer or a reference leaves out rows that are too long for its model.
    """
    places = {(pair, right): row for row, (pair, right) in enumerate(zip(rows["pair"], rows["right"], strict=True))}
    whole = [pair for pair, right in places if right and (pair, False) in places]
    return [np.array([places[pair, right] for pair in whole], dtype=np.int64) for right in (True, False)]
