"""The standard tests of the workload."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolemesh import Batch, Ragged
from rolemesh_testing import WorkloadConformance, override


class TestEmbeddings(WorkloadConformance):
    plugin = "embeddings"
    options = {"tables": {"user": {"dim": 4, "evict_after": 20}, "net": {"dim": 4, "dense_rows": 5}}, "file_mb": 0.01}
    bad_options = (
        {"tables": {}},
        {"tables": {"user": {"dim": 0}}},
        {"tables": {"user": {"dim": 2, "optimizer": {"use": "lion"}}}},
        {"tables": {"user": {"dim": 2}}, "file_mb": 0},
    )

    def step(self, role: Any, step: int) -> None:
        rng = np.random.default_rng(step)
        keys = rng.integers(0, 500, (20, 3))
        rows = role.lookup(keys=Batch({"user": keys}))
        grads = {"updates": np.array([int(np.min(rows["updates"]))])}
        for name in ("user", "net"):
            given, values = rows[f"{name}_keys"].values, rows[f"{name}_values"].values
            places = np.array([0, len(given)])
            grads |= {f"{name}_keys": Ragged(given, places), f"{name}_grads": Ragged(values + 1, places)}
        role.update(grads=Batch(grads))
        role.publish()

    @override("rows come grouped by rank, and a client orders them by key; test_servers.py compares what is learned")
    def test_the_world_size_does_not_change_results(self) -> None: ...
