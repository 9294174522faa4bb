"""Fixtures: folders of runs and of snapshots, and a state with values of every kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.unit.engine.conftest import manifest, persisted, run_dir, shm, small_disk

from rolemesh.api.batch import Batch, Ragged, Shard

__all__ = ["every_kind", "manifest", "persisted", "run_dir", "shm", "small_disk"]


@pytest.fixture
def every_kind() -> dict[Any, Any]:
    """A state with everything that has a place in one."""
    import torch

    return {
        "array": np.arange(10.0),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        "big_endian": np.arange(3, dtype=">i4"),
        "strings": np.array(["a", "bcd"]),
        "records": np.zeros(3, dtype=[("a", "i4"), ("b", "f8", (2,))]),
        "complex": np.ones(2, complex),
        "empty": np.zeros((0, 3), np.float32),
        "nested": {"bfloat16": torch.ones(3, 4, dtype=torch.bfloat16), "empty": torch.zeros(0, 3), 3: "key 3"},
        "float8": torch.arange(8.0).to(torch.float8_e4m3fn),
        "complex128": torch.ones(2, dtype=torch.complex128),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "shard": Shard(torch.arange(6.0).reshape(2, 3), (4, 3), (2, 0)),
        "empty_shard": Shard(np.zeros((0, 3), np.float32), (4, 3), (4, 0)),
        "big_int": 1 << 100,
        "numbers": [0, -1, 1.5, float("inf"), True, None],
        "text": "é\ud800",
        "bytes": b"abc",
        "many_bytes": b"x" * 100_000,
        "python_rng": random.Random(1).getstate(),
        "numpy_rng": np.random.default_rng(0).bit_generator.state,
        "scalar": np.float32(3),
        "date": np.datetime64("2020-01-01"),
        "batch": Batch({"x": np.arange(3), "r": Ragged.from_rows([[1], [2, 3], []])}),
    }
