"""Ranks that are forked from one process draw different numbers, and the same ones in a second run."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rolemesh import RankContext
from rolemesh_durable.rank.generators import seed_generators


@pytest.fixture(autouse=True)
def _kept() -> object:
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn(role: str = "a", rank: int = 0, resume: int = -1, seed: int = 0) -> tuple[float, float]:
    seed_generators(RankContext(role=role, rank=rank, seed=seed), resume)
    return float(np.random.rand()), random.random()


def test_the_numbers_differ_by_role_rank_step_and_seed_and_repeat() -> None:
    different = [drawn(), drawn(role="b"), drawn(rank=1), drawn(resume=4), drawn(seed=1)]
    for position in range(2):
        assert len({pair[position] for pair in different}) == len(different)
    assert drawn() == different[0]
