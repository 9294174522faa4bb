"""The choice of rows: the same ones in a repeated step, and whole groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from rolemesh import Batch, Split
from rolemesh.graph.logical import OpCall
from rolemesh_recorder.rows import Row, Sampling


def kept(columns: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    op = OpCall(0, "rollout", "generate", "rollout.generate", Split())
    run = Sampling("1/4").around(op, lambda: Batch(columns), lambda: 7, found.append)
    run()
    return found


def test_the_rows_of_a_group_stay_together() -> None:
    group = np.repeat(np.arange(100), 8)
    rows = kept({"group": group})
    counts = Counter(row.columns["group"] for row in rows)
    assert set(counts.values()) == {8}
    assert 10 < len(counts) < 45
    assert rows == kept({"group": group})


def test_the_rows_of_an_operator_that_takes_items_by_demand_have_their_numbers_in_the_step() -> None:
    """Such an operator yields items in any order, as agents do with their conversations."""
    found: list[Row] = []
    op = OpCall(0, "agent", "converse", "agent.converse", Split())

    def items() -> Iterator[tuple[int, int, int, int, Batch]]:
        for number in (2, 0):
            yield number, 3, 4 * number, 12, Batch({"n": np.arange(4 * number, 4 * number + 4)})

    run = Sampling("1/1").around(op, items, lambda: 7, found.append)
    assert len(list(run())) == 2
    assert [(row.step, row.row, row.columns["n"]) for row in found] == [(7, n, n) for n in (8, 9, 10, 11, 0, 1, 2, 3)]
