"""The index of keys does what a dict does."""

from __future__ import annotations

import numpy as np
import pytest

from rolemesh_embeddings.index import Index
from rolemesh_embeddings.reserved import Reserved


@pytest.mark.parametrize("space", [50, 3000, 1 << 60])
@pytest.mark.parametrize("expected", [0, 40])
def test_an_index_finds_what_a_dict_does(space: int, expected: int) -> None:
    """New keys, keys that get another row, removed keys; regions that grow, with and without an expected size."""
    rng, column = np.random.default_rng(space), Reserved(np.int64, 0, 1 << 16).array
    index, known, end = Index(column, 1 << 14), dict[int, int](), 0
    index.expected[:] = expected
    for turn in range(40):
        if turn % 3 == 2:
            gone = rng.choice(list(known), len(known) // 5, replace=False)
            index.remove(index.find(gone))
            for key in gone.tolist():
                del known[key]
        keys = rng.permutation(np.unique(rng.integers(-space, space, 700)))
        rows = np.arange(end, end + len(keys))
        column[rows], end = keys, end + len(keys)
        assert sorted(index.add(rows).tolist()) == sorted(known[key] for key in keys.tolist() if key in known)
        known.update(zip(keys.tolist(), rows.tolist(), strict=True))
        asked = np.array([*known, *range(100)])
        assert index.find(asked).tolist() == [known.get(key, -1) for key in asked.tolist()]
        assert index.counts.sum() == len(known)
        assert (2 * index.counts <= np.maximum(index.sizes, 2)).all()
