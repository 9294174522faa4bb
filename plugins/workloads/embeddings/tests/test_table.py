"""Numbers of tables: equal to torch's, whatever the order of keys; admission, eviction, bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from rolemesh_embeddings.deepfm import auc
from rolemesh_embeddings.hashing import BUCKETS, ranks_of_buckets
from rolemesh_embeddings.options import TableOptions
from rolemesh_embeddings.table import Table, summed

TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}


def table(**options: Any) -> Table:
    return Table("t", TypeAdapter(TableOptions).validate_python({"dim": 8, **options}), seed=3)


@pytest.mark.parametrize("name", TORCH)
def test_an_update_equals_torchs_with_sparse_gradients(name: str) -> None:
    """Sums of bags, repeated keys, keys that are new in a later step."""
    rng = np.random.default_rng(0)
    ours, keys = table(optimizer={"use": name, "lr": 0.1}), np.arange(200)
    theirs = torch.nn.EmbeddingBag(200, 8, mode="sum", sparse=True)
    theirs.weight.data = torch.from_numpy(ours.lookup(keys)[0].copy())
    optimizer = TORCH[name](list(theirs.parameters()))
    for step in range(1, 60):
        bags, target = torch.from_numpy(rng.integers(0, 200, (16, 3))), torch.from_numpy(rng.normal(size=(16, 8)))
        optimizer.zero_grad()
        ((theirs(bags) - target) ** 2).mean().backward()
        flat = bags.reshape(-1).numpy()
        error = torch.from_numpy(ours.lookup(flat)[0].reshape(16, 3, 8).sum(1)).requires_grad_()
        ((error - target) ** 2).mean().backward()
        assert error.grad is not None
        ours.update(*summed(flat, np.repeat(error.grad.numpy(), 3, axis=0)), step)
        optimizer.step()
    np.testing.assert_allclose(ours.lookup(keys)[0], theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_ftrl_follows_the_algorithm_of_its_paper() -> None:
    """One coordinate at a time, in Python's floats, as algorithm 1 is printed."""
    options = {"use": "ftrl", "alpha": 0.1, "beta": 1.0, "l1": 0.5, "l2": 0.1}
    ours, rng = table(dim=1, begin="zeros", optimizer=options), np.random.default_rng(1)
    z = n = w = 0.0
    for step in range(1, 100):
        grad = float(np.float32(rng.normal() + 0.2))
        ours.update(np.array([5]), np.float32([[grad]]), step)
        sigma = ((n + grad**2) ** 0.5 - n**0.5) / 0.1
        z, n = z + grad - sigma * w, n + grad**2
        w = 0.0 if abs(z) <= 0.5 else -(z - np.sign(z) * 0.5) / ((1.0 + n**0.5) / 0.1 + 0.1)
        assert ours.lookup(np.array([5]))[0][0, 0] == pytest.approx(w, abs=1e-5)
    assert w != 0


def test_a_row_begins_with_values_of_seed_table_and_key_only() -> None:
    keys = np.array([7, -3, 1 << 60])
    first = table(begin="normal", scale=1.0).lookup(keys)[0]
    again = table(begin="normal", scale=1.0).lookup(keys[::-1])[0][::-1]
    np.testing.assert_array_equal(first, again)
    many = table(begin="normal", scale=1.0).lookup(np.arange(20000))[0]
    assert abs(float(many.mean())) < 0.02
    assert abs(float(many.std()) - 1) < 0.02
    assert len(np.unique(many)) > 100000


def test_a_key_is_admitted_after_its_sights_and_evicted_by_age() -> None:
    ours = table(admit_after=3, evict_after=10, optimizer={"use": "sgd", "lr": 1.0}, begin="zeros")
    for step in range(1, 4):
        refused = ours.update(np.array([1, step + 100]), np.ones((2, 8), np.float32), step)
        assert refused == (1 if step == 3 else 2)
    np.testing.assert_array_equal(ours.lookup(np.array([1, 101]))[0][:, 0], [-1, 0])
    for step in range(4, 4 + 10 + BUCKETS):
        ours.evict(step)
    assert len(ours.store) == 0
    assert ours.seen is not None
    assert len(ours.seen) == 0


def test_bfloat16_values_are_the_neighbours_of_float32_ones() -> None:
    ours = table(dtype="bfloat16", optimizer={"use": "sgd", "lr": 1.0}, begin="zeros")
    grads = np.random.default_rng(0).normal(size=(4000, 8)).astype(np.float32)
    ours.update(np.arange(4000), grads, 1)
    found, exact = ours.lookup(np.arange(4000))[0], -grads
    np.testing.assert_array_equal(found, torch.from_numpy(found).bfloat16().float().numpy())
    assert (np.abs(found - exact) < np.abs(exact) * 2**-7).all()
    nearest = torch.from_numpy(exact).bfloat16().float().numpy()
    assert 0.6 < (found == nearest).mean() < 0.9  # three quarters for values that lie anywhere between two neighbours
    assert abs(float(((found - exact) / exact).mean())) < 1e-4


def test_bfloat16_values_add_up_changes_that_are_below_half_of_a_bit() -> None:
    """A thousand steps of 1e-3 from 0: rounded to the nearest value, they would end at -0.5."""
    ours = table(dtype="bfloat16", optimizer={"use": "sgd", "lr": 1e-3}, begin="uniform", scale=0.0)
    keys, rows = np.arange(50), np.ones((50, 8), np.float32)
    for update in range(1, 1001):
        ours.update(keys, rows, update)
    found = ours.lookup(keys)[0]
    assert float(found.mean()) == pytest.approx(-1, abs=0.02)
    assert float(found.std()) < 0.1
    again = table(dtype="bfloat16", optimizer={"use": "sgd", "lr": 1e-3}, begin="uniform", scale=0.0)
    for update in range(1, 1001):
        again.update(keys[::-1], rows, update)
    np.testing.assert_array_equal(again.lookup(keys)[0], found)


@pytest.mark.parametrize("name", TORCH)
def test_bfloat16_learns_on_average_what_torch_learns_in_float32(name: str) -> None:
    ours, keys = table(dtype="bfloat16", optimizer={"use": name, "lr": 0.1}, begin="zeros"), np.arange(200)
    theirs = torch.nn.Embedding(200, 8, sparse=True)
    torch.nn.init.zeros_(theirs.weight)
    optimizer = TORCH[name](list(theirs.parameters()))
    for update in range(1, 501):
        optimizer.zero_grad()
        (theirs(torch.from_numpy(keys)) * 0.01).sum().backward()
        optimizer.step()
        ours.update(keys, np.full((200, 8), 0.01, np.float32), update)
    assert float(ours.lookup(keys)[0].mean()) == pytest.approx(float(theirs.weight.mean()), rel=0.01)


def test_a_third_rank_takes_a_third_of_the_buckets_and_moves_no_other() -> None:
    before, after = (ranks_of_buckets(ranks).tolist() for ranks in (2, 3))
    moved = [bucket for bucket in range(BUCKETS) if before[bucket] != after[bucket]]
    assert {after[bucket] for bucket in moved} == {2}
    assert BUCKETS / 4 < len(moved) < BUCKETS / 2.4


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    chance, clicked = np.float32([0.1, 0.4, 0.4, 0.8, 0.2]), np.float32([0, 1, 0, 1, 1])
    pairs = [(p > n) + 0.5 * (p == n) for p in chance[clicked > 0] for n in chance[clicked == 0]]
    assert auc(chance, clicked) == pytest.approx(np.mean(pairs))
    assert auc(chance, np.ones(5)) is None
