"""A toy language: each sentence counts through 64 words with a stride that its first word announces."""

from __future__ import annotations

import numpy as np

from rolemesh import Batch, Ragged, RankContext

BOS, EOS = 0, 1
WORDS = 64
STRIDES = (1, 3, 5, 7)
FIRST_STRIDE, FIRST_WORD = 2, 16
"""First ids of the strides and of the words."""


class ToyData:
    """Sentences by number, from the job's seed. The role has no state between steps, so there is nothing to restore."""

    def __init__(self, rows: int = 16) -> None:
        self.rows = rows

    def next(self, ctx: RankContext) -> Batch:
        """Return the step's sentences: `input_ids` (ragged int32, 10 to 24 tokens each)."""
        first = ctx.step * self.rows
        sentences = [sentence(ctx.rng("sentence", number)) for number in range(first, first + self.rows)]
        return Batch({"input_ids": Ragged.from_rows(sentences, np.int32)})


def sentence(rng: np.random.Generator) -> np.ndarray:
    """Return BOS, a stride, words that each follow the previous one by that stride, and EOS."""
    stride, start, length = rng.integers(len(STRIDES)), rng.integers(WORDS), rng.integers(7, 22)
    words = (start + STRIDES[stride] * np.arange(length)) % WORDS
    return np.concatenate([[BOS, FIRST_STRIDE + stride], FIRST_WORD + words, [EOS]])
