"""Chats as tokens. The model learns the last message, the answer."""

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext
from rolemesh_rewards.prompts import make_prompt
from rolemesh_torch.chats import answer_of, answered

ANSWERS = ("answer", "completion", "response", "output", "solution")


class Tokens:
    def __init__(self, model: str, ctx: RankContext) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(Path(ctx.base, model))

    def encode(self, questions: Batch) -> Batch:
        """Return `input_ids`, and a `loss_mask` that is 1 for tokens of the answer."""
        ids, masks = [], []
        name = "messages" if "messages" in questions else "prompt"
        for asked, row in zip(questions[name], questions["row"], strict=True):
            chat = row.get("messages") if name == "messages" else None
            usual = make_prompt(row, None, None) if chat else []
            if chat and chat[-1]["role"] == "assistant" and asked[-len(usual) :] == usual:  # the row is a whole chat
                system = asked[:1] if asked[0]["role"] == "system" != chat[0]["role"] else []
                asked, answer = [*system, *chat[:-1]], chat[-1:]
            else:
                answer = answer_of(row, ANSWERS)
            prompt, (learned,) = answered(self.tokenizer, asked, [answer], row)
            ids.append([*prompt, *learned])
            masks.append([0] * len(prompt) + [1] * len(learned))
        columns = {"input_ids": ids, "loss_mask": masks}
        return Batch({name: Ragged.from_rows(rows, np.int32) for name, rows in columns.items()})
