"""Chats as tokens. The model learns the last message, the answer."""

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext
from rolemesh_torch.chats import chat_text

ANSWERS = ("answer", "completion", "response", "output", "solution")


class Tokens:
    def __init__(self, model: str, ctx: RankContext) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(Path(ctx.base, model))

    def encode(self, questions: Batch) -> Batch:
        """Return `input_ids`, and a `loss_mask` that is 1 for tokens of the answer."""
        ids, masks = [], []
        for chat, row in zip(questions["messages"], questions["row"], strict=True):
            answer = next((row[name] for name in ANSWERS if name in row), [])
            chat = chat + (answer if isinstance(answer, list) else [{"role": "assistant", "content": str(answer)}])
            if chat[-1]["role"] != "assistant":
                raise ValueError(f"a question has no answer in its columns {', '.join(row)}; name it in ANSWERS")
            prompt = self._tokens(chat[:-1], row, prompt=True) if chat[:-1] else []
            whole = self._tokens(chat, row, prompt=False)
            same = [one == other for one, other in zip(prompt, whole, strict=False)]
            first = [*same, False].index(False)
            ids.append(whole)
            masks.append([0] * first + [1] * (len(whole) - first))
        columns = {"input_ids": ids, "loss_mask": masks}
        return Batch({name: Ragged.from_rows(rows, np.int32) for name, rows in columns.items()})

    def _tokens(self, chat: list, row: dict, *, prompt: bool) -> list[int]:
        text = chat_text(self.tokenizer, chat, row, prompt=prompt)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]
