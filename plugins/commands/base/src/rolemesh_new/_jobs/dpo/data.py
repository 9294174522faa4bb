"""Pairs of answers as tokens: two rows per question for the reference, one for the trainer."""

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext
from rolemesh_torch.chats import answer_of, answered


class Pairs:
    def __init__(self, model: str, ctx: RankContext) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(Path(ctx.base, model))

    def encode(self, questions: Batch) -> Batch:
        """Return the chosen answer to each question, and the rejected one in the row after it."""
        prompts, pairs = [], []
        name = "messages" if "messages" in questions else "prompt"
        for asked, row in zip(questions[name], questions["row"], strict=True):
            answers = [answer_of(row, [which]) for which in ("chosen", "rejected")]
            prompt, both = answered(self.tokenizer, asked, answers, row)
            prompts += [prompt, prompt]
            pairs += both
        return Batch({"prompt_ids": ragged(prompts), "completion_ids": ragged(pairs)})

    def join(self, rows: Batch) -> Batch:
        """Return a row per pair, with the reference's log-probabilities of both answers."""
        prompts, answers = list(rows["prompt_ids"]), list(rows["completion_ids"])
        reference = np.array([np.sum(row) for row in rows["ref_logprobs"]], np.float32)
        chosen = {"chosen_ids": ragged(answers[::2]), "ref_chosen": reference[::2]}
        rejected = {"rejected_ids": ragged(answers[1::2]), "ref_rejected": reference[1::2]}
        return Batch({"prompt_ids": ragged(prompts[::2]), **chosen, **rejected})


def ragged(rows: list) -> Ragged:
    return Ragged.from_rows(rows, np.int32)
