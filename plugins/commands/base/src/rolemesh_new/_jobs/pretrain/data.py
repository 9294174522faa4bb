"""Windows of a text in tokens, in another order in each epoch."""

from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from rolemesh import Batch, Ragged, RankContext


class Text:
    def __init__(self, model: str, data: str, window: int, rows: int, ctx: RankContext) -> None:
        path = Path(ctx.base, data)
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        tokenizer = AutoTokenizer.from_pretrained(Path(ctx.base, model))
        tokens = [token for file in files for token in tokenizer(file.read_text())["input_ids"]]
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
