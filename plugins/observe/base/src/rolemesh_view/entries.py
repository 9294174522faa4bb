"""Entries of kept rows: the numbers and marks that filters and tables use, without texts and lists. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from rolemesh.api.rank_ref import RankRef
from rolemesh_facts.row_meaning import Meaning, meaning
from rolemesh_recorder.rows import Row
from rolemesh_view.tokens import is_number, numbers_of

__all__ = ["Entry", "entry_of", "missing_policy", "policies_of", "ratio_of"]

PAIRS = (
    ("old_logprobs", "sampler_logprobs"), ("logprobs", "sampler_logprobs"), ("old_logprobs", "logprobs"),
    ("trainer_logprobs", "logprobs"),
)  # fmt: skip
"""Columns with the log-probabilities of the trainer and of the sampler; the first pair that a row has counts."""
TRAINERS, SAMPLERS = ("old_logprobs", "trainer_logprobs"), ("sampler_logprobs", "logprobs")


class Entry(NamedTuple):
    """A kept row: its rank, step, operator and number, and what filters and tables need.

    - `said`: what it says about its sample.
    - `ratio`: as of `ratio_of`; `policies`: the columns of `PAIRS` that it has; `paired`: whether two of them fit.
    - `numbers`: its columns with a number.
    - `place`: its file, and where its line begins.
    """

    ref: RankRef
    step: int
    op: str
    row: int
    said: Meaning
    ratio: float | None
    policies: tuple[str, ...]
    paired: bool
    numbers: Mapping[str, float]
    place: tuple[Path, int]


def entry_of(ref: RankRef, row: Row, place: tuple[Path, int]) -> Entry:
    """Return the entry of a row that was kept by `ref` and lies at `place`."""
    columns = row.columns
    return Entry(
        ref, row.step, intern(row.op), row.row, meaning(columns), ratio_of(columns),
        tuple(name for name in (*TRAINERS, *SAMPLERS) if isinstance(columns.get(name), list)),
        policies_of(columns) is not None,
        {intern(name): value for name, value in columns.items() if is_number(value)},
        place,
    )  # fmt: skip


def policies_of(columns: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the names of a row's columns with the trainer's and the sampler's log-probabilities; None without both."""
    for trainer, sampler in PAIRS:
        one, other = columns.get(trainer), columns.get(sampler)
        if isinstance(one, list) and isinstance(other, list) and one and len(one) == len(other):
            return trainer, sampler
    return None


def ratio_of(columns: Mapping[str, Any]) -> float | None:
    """Return the largest ratio of a token's probabilities at trainer and sampler, whichever is larger, at least 1.

    None if the row lacks one of them, or has no finite one.
    """
    names = policies_of(columns)
    if names is None:
        return None
    pairs = zip(numbers_of(columns[names[0]]), numbers_of(columns[names[1]]), strict=True)
    differences = [abs(one - other) for one, other in pairs if math.isfinite(one) and math.isfinite(other)]
    return math.exp(min(700.0, max(differences))) if differences else None


def missing_policy(entries: Iterable[Entry]) -> str:
    """Return which log-probabilities the rows lack for differences and ratios; "" if nothing, or if they have none."""
    names: set[str] = set()
    for entry in entries:
        if entry.paired:
            return ""
        names.update(entry.policies)
    if not names:
        return ""
    trainers, samplers = names.intersection(TRAINERS), names.intersection(SAMPLERS)
    if trainers and samplers:
        return "No row has those of trainer and sampler for the same tokens"
    has, lacks = ("sampler", "trainer") if samplers else ("trainer", "sampler")
    known = " or ".join(TRAINERS if lacks == "trainer" else SAMPLERS)
    return f"The rows have those of the {has} ({', '.join(sorted(names))}), but not those of the {lacks} ({known})"
