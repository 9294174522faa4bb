"""From prompts to rows of completions: which column holds the prompt, what is repeated, what is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged

__all__ = ["PROMPT_COLUMNS", "TICKETS", "Completion", "carried", "join", "prompt_column", "repeat", "row_index"]

PROMPT_COLUMNS = ("prompt_ids", "messages", "prompt")

TICKETS = "kv_transfer"
"""The column with a prompt's `rolemesh_vllm.leases.Ticket`, or None where its KV cache is not kept."""


class Completion(NamedTuple):
    """One completion: its tokens, the logprob of each under the sampling distribution, its text, why it ended."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish_reason: str


def prompt_column(prompts: Batch) -> str:
    """The first of `PROMPT_COLUMNS` that `prompts` has."""
    for name in PROMPT_COLUMNS:
        if name in prompts:
            return name
    raise ValueError(f"no prompts: the batch has {sorted(prompts)}, it needs one of {', '.join(PROMPT_COLUMNS)}")


def row_index(prompts: Batch, rank: int) -> NDArray[np.int64]:
    """A number per prompt, unique in the step: the column `index`, or else one from rank and row.

    Without `index`, samples depend on the rank that made them.
    """
    if "index" in prompts:
        return np.asarray(prompts["index"], dtype=np.int64)
    return np.arange(prompts.rows, dtype=np.int64) + (rank << 32)


def carried(prompts: Batch) -> dict[str, Any]:
    """The columns that go on with each sample: all but the prompt itself and its KV cache."""
    return {name: column for name, column in prompts.items() if name not in (*PROMPT_COLUMNS, TICKETS)}


def repeat(column: Any, times: int) -> Any:
    """Each row `times` times, one after the other."""
    if times == 1:
        return column
    if isinstance(column, Ragged):
        return Ragged.from_rows([row for row in column for _ in range(times)], dtype=column.values.dtype)
    if isinstance(column, (list, tuple)):
        return [row for row in column for _ in range(times)]
    if isinstance(column, np.ndarray):
        return np.repeat(column, times, axis=0)
    return column.repeat_interleave(times, dim=0)


def join(
    columns: Mapping[str, Any],
    prompt_ids: Sequence[Sequence[int]],
    index: NDArray[np.int64],
    completions: Sequence[Completion],
    *,
    samples: int,
    version: int,
) -> Batch:
    """Prompts × samples rows, prompt-major: the carried columns and what was generated."""
    repeated = {name: repeat(column, samples) for name, column in columns.items()}
    return Batch(
        repeated
        | {
            "prompt_ids": Ragged.from_rows([ids for ids in prompt_ids for _ in range(samples)], dtype=np.int32),
            "completion_ids": Ragged.from_rows([c.ids for c in completions], dtype=np.int32),
            "logprobs": Ragged.from_rows([c.logprobs for c in completions], dtype=np.float32),
            "text": [c.text for c in completions],
            "group": np.repeat(index, samples),
            "weight_version": np.full(len(completions), version, dtype=np.int64),
            "finish_reason": [c.finish_reason for c in completions],
        },
        rows=len(completions),
    )
