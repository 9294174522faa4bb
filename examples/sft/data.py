"""A toy language: each sentence counts through 64 words with a stride that its first word announces."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolemesh.batch import Batch, Ragged
from rolemesh.partition import Split
from rolemesh.workload import operator

BOS, EOS = 0, 1
WORDS = 64
STRIDES = (1, 3, 5, 7)
FIRST_STRIDE, FIRST_WORD = 2, 16
"""Where the ids of the strides and of the words start."""


class ToyData:
    """Sentences by number: the n-th sentence is the same in every run, whoever asks for it."""

    rows = 16

    def __init__(self) -> None:
        self.drawn = 0

    @operator(returns=Split())
    def next(self) -> Batch:
        """16 new sentences: `input_ids` (ragged int32, 10 to 24 tokens each)."""
        numbers = range(self.drawn, self.drawn + self.rows)
        self.drawn += self.rows
        return Batch({"input_ids": Ragged.from_rows([sentence(number) for number in numbers], np.int32)})

    def snapshot(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


def sentence(number: int) -> np.ndarray:
    """BOS, a stride, then words that each follow the one before by that stride, EOS."""
    rng = np.random.default_rng(number)
    stride, start, length = rng.integers(len(STRIDES)), rng.integers(WORDS), rng.integers(7, 22)
    words = (start + STRIDES[stride] * np.arange(length)) % WORDS
    return np.concatenate([[BOS, FIRST_STRIDE + stride], FIRST_WORD + words, [EOS]])
