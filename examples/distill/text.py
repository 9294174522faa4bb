"""Windows of tokens of a folder of text."""

from pathlib import Path

import numpy as np

from rolemesh import Batch, Ragged


class Text:
    """The rows of a step follow from its number and the job's seed. No row comes twice in an epoch."""

    def __init__(self, ctx, folder, model, rows=4, window=64):
        self.ctx, self.rows = ctx, rows
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(Path(ctx.base, model).resolve(), local_files_only=True)
        files = sorted(Path(ctx.base, folder).resolve().glob("*.md"))
        ids = np.concatenate([tokenizer(path.read_text())["input_ids"] for path in files]).astype(np.int32)
        self.windows = ids[: len(ids) // window * window].reshape(-1, window)

    def next(self):
        """The step's rows: `input_ids`."""
        numbers = self.ctx.step * self.rows + np.arange(self.rows)
        epochs, places = numbers // len(self.windows), numbers % len(self.windows)
        order = {epoch: self.ctx.rng("epoch", int(epoch)).permutation(len(self.windows)) for epoch in set(epochs)}
        rows = [self.windows[order[epoch][place]] for epoch, place in zip(epochs, places, strict=True)]
        return Batch({"input_ids": Ragged.from_rows(rows, dtype=np.int32)})
