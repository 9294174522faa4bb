"""Rows of token ids as one row: a tree of their prefixes, in which each token lies once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Counted", "Ids", "Packed", "pack", "rows_of", "targets_of", "wanted_of"]

Ids = NDArray[np.int64]
Counted = Sequence[NDArray[np.bool_]]
"""For each row, which tokens of its completion count."""


@dataclass(frozen=True)
class Packed:
    """One row of `length` tokens for a batch of prompts and completions, in the order of a walk through their tree."""

    input_ids: Ids
    """(length,)"""
    positions: Ids
    """(length,): position of each token in its own row."""
    ends: Ids
    """(length,): place after the last token that sees this one. The descendants of a token follow it directly, so token
    i sees token j if j <= i < ends[j]."""
    keep: Ids
    """(kept,): places in the row, ascending, whose logits predict a token of a completion."""
    source: Ids
    """(tokens,): for each counted completion token, in the order of the rows, the index in `keep` of the place that
    predicts it."""
    targets: Ids
    """(tokens,): the counted completion tokens."""

    def mask(self) -> NDArray[np.bool_]:
        """(length, length): [i, j] says whether token i sees token j."""
        return np.tri(len(self.input_ids), dtype=np.bool_) & (self.ends[None, :] > np.arange(len(self.ends))[:, None])


def pack(prompts: Sequence[Any], completions: Sequence[Any], counted: Counted | None = None) -> Packed:
    """Lay out rows of token ids. The last counted token of a completion predicts nothing that counts, so it and the
    tokens after it are left out.

    `counted` says which tokens of each completion are predicted; None: all of them. Raises `ValueError` if there are no
    rows, and for an empty prompt.
    """
    prompts, completions = rows_of(prompts, completions)
    wanted = wanted_of(completions, counted)
    rows = [
        np.concatenate([prompt, ids[: places[-1] if len(places) else 0]])
        for prompt, ids, places in zip(prompts, completions, wanted, strict=True)
    ]
    ends = np.empty(sum(map(len, rows)), dtype=np.int64)
    laid: list[Ids] = []
    positions: list[Ids] = []
    predictors: dict[int, Ids] = {}
    firsts: list[int] = []
    previous = path = np.zeros(0, dtype=np.int64)
    length = 0
    # In lexicographic order a row shares its longest prefix with the row before it. Big-endian bytes have that order.
    for row in sorted(range(len(rows)), key=lambda row: rows[row].astype(">i8").tobytes()):
        ids = rows[row]
        shared = _shared(previous, ids)
        ends[path[shared:]] = length
        path = np.concatenate([path[:shared], np.arange(length, length + len(ids) - shared)])
        laid.append(ids[shared:])
        positions.append(np.arange(shared, len(ids)))
        length += len(ids) - shared
        before = len(prompts[row]) - 1
        firsts.append(int(path[before]))
        predictors[row] = path[before + wanted[row]]
        previous = ids
    ends[path] = length
    sources = [predictors[row] for row in range(len(rows))]
    keep = np.unique(np.concatenate([np.array(firsts), *sources])).astype(np.int64)
    return Packed(
        input_ids=np.concatenate(laid),
        positions=np.concatenate(positions),
        ends=ends[:length],
        keep=keep,
        source=np.searchsorted(keep, np.concatenate(sources)),
        targets=targets_of(completions, wanted),
    )


def wanted_of(completions: Sequence[Ids], counted: Counted | None) -> list[Ids]:
    """Return the places of the counted tokens in each completion."""
    if counted is None:
        return [np.arange(len(ids)) for ids in completions]
    return [np.flatnonzero(np.asarray(mask)) for mask in counted]


def targets_of(completions: Sequence[Ids], wanted: Sequence[Ids]) -> Ids:
    return np.concatenate([ids[places] for ids, places in zip(completions, wanted, strict=True)])


def _shared(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix."""
    shortest = min(len(one), len(other))
    same = one[:shortest] == other[:shortest]
    return shortest if same.all() else int(same.argmin())


def rows_of(prompts: Sequence[Any], completions: Sequence[Any]) -> tuple[list[Ids], list[Ids]]:
    """Return both as arrays. Raises `ValueError` if there are no rows, and for an empty prompt, because nothing
    predicts the token after it."""
    found = [[np.asarray(row, dtype=np.int64) for row in rows] for rows in (prompts, completions)]
    if not found[0]:
        raise ValueError("there are no rows to compute")
    empty = [row for row, prompt in enumerate(found[0]) if not len(prompt)]
    if empty:
        raise ValueError(f"the prompt of row {empty[0]} is empty, so nothing predicts its first completion token")
    return found[0], found[1]
