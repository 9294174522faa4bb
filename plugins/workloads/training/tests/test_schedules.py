"""The learning rate of each update."""

from __future__ import annotations

import pytest

from rolemesh_training import TrainerOptions
from rolemesh_training.schedules import factor


def rates(updates: int, **options: object) -> list[float]:
    return [factor(TrainerOptions.model_validate(options), update) for update in range(updates)]


def test_a_constant_rate_rises_first():
    assert rates(5, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_and_cosine_fall_to_what_is_to_be_left():
    assert rates(7, schedule="linear", schedule_updates=4, min_lr_ratio=0.2) == pytest.approx(
        [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    )
    found = rates(12, schedule="cosine", schedule_updates=10, warmup_steps=2)
    assert found[:3] == [0.5, 1.0, 1.0]
    assert found[6] == pytest.approx(0.5)
    assert found[10:] == pytest.approx([0.0, 0.0])


def test_wsd_stays_and_falls_at_the_end():
    found = rates(11, schedule="wsd", schedule_updates=10, decay_updates=4, warmup_steps=1)
    assert found == pytest.approx([1.0] * 7 + [0.75, 0.5, 0.25, 0.0])
