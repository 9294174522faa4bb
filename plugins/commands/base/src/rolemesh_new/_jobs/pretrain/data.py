"""Windows of texts in tokens: of files, or rows of .jsonl files. The tokenizer's end of text separates texts."""

import json
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext


class Text:
    def __init__(self, model: str, data: str, window: int, rows: int, ctx: RankContext) -> None:
        path, tokenizer, tokens = Path(ctx.base, data), AutoTokenizer.from_pretrained(Path(ctx.base, model)), []
        for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
            for text in texts(file):
                ids, end = tokenizer(text)["input_ids"], tokenizer.eos_token_id
                tokens += ids if end is None or ids[-1:] == [end] else [*ids, end]
        whole = len(tokens) // window * window
        if not whole:
            raise ValueError(f"{path} has {len(tokens)} tokens, and a window needs {window}")
        self.rows, self.windows = rows, np.array(tokens[:whole], np.int32).reshape(-1, window)

    def next(self, ctx: RankContext) -> Batch:
        """Return the step's windows as `input_ids`. The place in the text follows from the step."""
        numbers = range(ctx.step * self.rows, (ctx.step + 1) * self.rows)
        ctx.metric(epoch=numbers.stop / len(self.windows))
        return Batch({"input_ids": Ragged.from_rows([self._window(each) for each in numbers], np.int32)})

    def _window(self, number: int) -> np.ndarray:
        epoch, place = divmod(number, len(self.windows))
        return self.windows[np.random.default_rng([epoch]).permutation(len(self.windows))[place]]


def texts(file: Path) -> list[str]:
    whole = file.read_text(encoding="utf-8")
    rows = [json.loads(each) for each in whole.strip().split("\n")] if file.suffix == ".jsonl" else [{"text": whole}]
    if not all(isinstance(row.get("text"), str) for row in rows):
        raise ValueError(f"a row of {file} has no column text: name the column here, or leave the row out")
    return [row["text"] for row in rows]
