"""From prompts to rows of completions: find the prompt's column, repeat the others, add the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError

__all__ = ["PROMPT_COLUMNS", "TICKETS", "Completion", "Fitted", "Room", "carried", "fitted", "join", "pick"]
__all__ += ["prompt_column", "repeat", "row_index"]

PROMPT_COLUMNS = ("prompt_ids", "messages", "prompt")

TICKETS = "kv_transfer"
"""Column with a prompt's `rolemesh_vllm.leases.Ticket`, or None if its KV cache is not kept."""


class Completion(NamedTuple):
    """A completion: its tokens, their log-probabilities under the sampling distribution, its text, and the reason of
    its end."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish_reason: str


class Room(NamedTuple):
    """Maximum number of tokens of a prompt: those of the engine's context minus those of a completion."""

    max_model_len: int
    max_tokens: int

    @property
    def tokens(self) -> int:
        return self.max_model_len - self.max_tokens

    def __str__(self) -> str:
        return f"with max_model_len {self.max_model_len} and max_tokens {self.max_tokens} it may have {self.tokens}"


class Fitted(NamedTuple):
    """Prompts that leave room for a completion. Dropped ones have no tokens."""

    ids: list[list[int]]
    dropped: list[int]
    """Rows that are dropped."""
    truncated: list[int]
    """Rows that were cut."""


def fitted(
    rows: list[list[int]],
    room: Room,
    too_long: Callable[[], str],
    opening: int | None = None,
    name: Callable[[int], str] = "prompt {}".format,
) -> Fitted:
    """Apply `too_long` (drop, truncate or fail) to those of `rows` (token ids) that leave no room.

    `truncate` keeps the last tokens, and a first one that is `opening`. An empty prompt cannot be cut, so it is
    dropped. For fail, raises `RolemeshError` with the `name` of the first such row.
    """
    found = Fitted(list(rows), [], [])
    for row, ids in enumerate(rows):
        if 0 < len(ids) <= room.tokens:
            continue
        how = too_long()
        if how == "fail":
            raise RolemeshError(
                f"{name(row)} has {len(ids)} tokens; {room}",
                remedy="raise engine.max_model_len, or set too_long to drop or truncate"
                if ids
                else "leave empty prompts out, or set too_long to drop",
            )
        if how == "truncate" and ids and room.tokens > 0:
            head = ids[:1] if ids[0] == opening and room.tokens > 1 else []
            found.ids[row] = head + ids[len(ids) - room.tokens + len(head) :]
            found.truncated.append(row)
        else:
            found.ids[row] = []
            found.dropped.append(row)
    return found


def pick(column: Any, rows: Sequence[int]) -> Any:
    """Return the `rows` of a column."""
    if isinstance(column, Ragged):
        return Ragged.from_rows([column[row] for row in rows], dtype=column.values.dtype)
    if isinstance(column, (list, tuple)):
        return [column[row] for row in rows]
    return column[list(rows)]


def prompt_column(prompts: Batch) -> str:
    """Return the first of `PROMPT_COLUMNS` that `prompts` has."""
    for name in PROMPT_COLUMNS:
        if name in prompts:
            return name
    raise ValueError(f"no prompts: the batch has {sorted(prompts)}, it needs one of {', '.join(PROMPT_COLUMNS)}")


def row_index(prompts: Batch, rank: int) -> NDArray[np.int64]:
    """Return a number per prompt, unique in the step: the column `index`, or else one from rank and row.

    Without `index`, samples depend on the rank that makes them. Raises `RolemeshError` for an index that is not an
    integer, or that two prompts have, because their samples would become one group.
    """
    if "index" in prompts:
        found = np.asarray(prompts["index"])
        if found.dtype.kind not in "iu" and len(found):
            what = f"the column 'index' has {found.dtype} values, such as {found[0]!r}"
            raise RolemeshError(what, remedy="number the prompts with integers")
        values, counts = np.unique(found, return_counts=True)
        for place in np.flatnonzero(counts > 1)[:1]:
            rows = np.flatnonzero(found == values[place])[:2]
            raise RolemeshError(
                f"prompts {rows[0]} and {rows[1]} have the same index {values[place]}",
                remedy="give each prompt of a step an index of its own, on all ranks of the role that numbers them, or "
                "leave the column out",
            )
        return found.astype(np.int64)
    return np.arange(prompts.rows, dtype=np.int64) + (rank << 32)


def carried(prompts: Batch) -> dict[str, Any]:
    """Return the columns that are repeated for each sample: all except the prompt's tokens and its KV cache."""
    return {name: column for name, column in prompts.items() if name not in ("prompt_ids", TICKETS)}


def repeat(column: Any, times: int) -> Any:
    """Return each row `times` times, one after the other."""
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
    sampling: Mapping[str, Any],
) -> Batch:
    """Return prompts × samples rows, prompt-major: the carried columns, the results, and their `sampling`."""
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
            "sampling": [dict(sampling) for _ in completions],
        },
        rows=len(completions),
    )
