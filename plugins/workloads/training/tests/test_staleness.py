"""The age of tokens in versions of the weights: lags, their histogram, rows that are too old. Pure."""

from __future__ import annotations

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_training.staleness import histogram, lags, stale_rows
from rolemesh_training.sums import SQUARES, WEIGHTS, add, add_lags, reported

IDS = Ragged.from_rows([[1, 2, 3], [4, 5], [6], []], np.int32)
VERSIONS = Ragged.from_rows([[7, -1, 9], [3, 10], [-1], []], np.int64)


def test_the_lag_of_a_token_is_the_trainers_version_minus_its_own():
    found = lags(Batch({"completion_ids": IDS, "weight_versions": VERSIONS}), 10)
    assert [row.tolist() for row in found] == [[3, 1], [7, 0], [], []]
    assert stale_rows(found, 3).tolist() == [False, True, False, False]
    assert stale_rows(found, 0).tolist() == [True, True, False, False]


def test_a_version_per_row_is_a_lag_per_row():
    batch = Batch({"completion_ids": IDS, "weight_version": np.array([9, 10, 8, 10])})
    assert [row.tolist() for row in lags(batch, 10)] == [[1], [0], [2], [0]]
    assert lags(Batch({"completion_ids": IDS}), 10) is None


def test_versions_of_another_length_than_the_completion_are_refused():
    short = Ragged.from_rows([[7, 9], [3, 10], [1], []], np.int64)
    with pytest.raises(RolemeshError, match="'weight_versions' has 2 entries for 3 completion tokens"):
        lags(Batch({"completion_ids": IDS, "weight_versions": short}), 10)


def test_the_histogram_has_a_last_bin_for_everything_older():
    rows = [np.array([0, 1, 1, 8]), np.array([9, 100]), np.array([-1])]
    assert histogram(rows) == {"lag_0": 2, "lag_1": 2, "lag_8": 3}
    assert histogram([]) == {}


def test_bins_are_shares_of_the_tokens_of_all_ranks():
    merged: dict[str, list[float]] = {}
    for rows in ([np.array([0, 0, 0])], [np.array([2])], []):  # no rank has all bins
        sums: dict[str, list[float]] = {}
        add_lags(sums, rows)
        for name, (total, weight) in sums.items():
            add(merged, name, total, weight)
    assert reported(merged) == {"staleness": 0.5, "lag_0": 0.75, "lag_2": 0.25}


def test_the_effective_sample_size_is_kishs():
    weights = np.array([1.0, 0.2, 3.0, 0.7, 1.1])
    sums = {WEIGHTS: [weights.sum(), 5.0], SQUARES: [(weights**2).sum(), 5.0]}
    normalized = weights / weights.mean()
    assert reported(sums) == {"effective_sample_size": pytest.approx(1 / (normalized**2).mean())}  # verl's formula
    assert reported({WEIGHTS: [5.0, 5.0], SQUARES: [5.0, 5.0]}) == {"effective_sample_size": 1.0}
    assert reported({WEIGHTS: [0.0, 5.0], SQUARES: [0.0, 5.0]}) == {}, "every weight was masked"
