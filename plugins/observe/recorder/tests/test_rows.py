"""The choice of rows: the same ones in a repeated step, and whole groups."""

from __future__ import annotations

from collections import Counter
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
