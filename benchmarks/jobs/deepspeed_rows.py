"""The rows of `deepspeed_step`: for the job's data role and for the script of DeepSpeed's own launcher."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, LENGTH, VOCABULARY = 16, 64, 256


def rows(step: int) -> NDArray[np.int32]:
    """(ROWS, LENGTH) token ids."""
    return np.random.default_rng(step).integers(0, VOCABULARY, size=(ROWS, LENGTH), dtype=np.int32)


class Data:
    """The data role."""

    def next(self, ctx: Any) -> Any:
        from rolemesh import Batch, Ragged

        return Batch({"input_ids": Ragged.from_rows(list(rows(ctx.step)), np.int32)})
