"""The learning rate of each update against transformers' schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rolemesh_training import TrainerOptions
from rolemesh_training.schedules import factor

pytestmark = pytest.mark.soak

END = 12
CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    # name: options, transformers' name, its options
    "constant": ({}, "constant_with_warmup", {}),
    "linear": ({"schedule": "linear", "schedule_updates": END}, "linear", {}),
    "cosine": ({"schedule": "cosine", "schedule_updates": END}, "cosine", {}),
    "cosine to a tenth": (
        {"schedule": "cosine", "schedule_updates": END, "min_lr_ratio": 0.1}, "cosine_with_min_lr",
        {"min_lr_rate": 0.1},
    ),
    "wsd": (
        {"schedule": "wsd", "schedule_updates": END, "decay_updates": 4}, "warmup_stable_decay",
        {"num_decay_steps": 4, "decay_type": "linear"},
    ),
    "wsd to a tenth, nothing stable": (
        {"schedule": "wsd", "schedule_updates": END, "decay_updates": END - 4, "min_lr_ratio": 0.1},
        "warmup_stable_decay", {"num_decay_steps": END - 4, "decay_type": "linear", "min_lr_ratio": 0.1},
    ),
}  # fmt: skip


def theirs(name: str, warmup: int, options: dict[str, Any]) -> list[float]:
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    found = get_scheduler(name, optimizer, warmup, END, scheduler_specific_kwargs=options)
    rates = []
    for _ in range(END + 4):
        rates.append(found.get_last_lr()[0])
        optimizer.step()
        found.step()
    return rates


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_that_of_transformers(case, warmup):
    """From the end of the warm-up on. transformers' warm-up makes its first update with a rate of 0, the trainers' with
    the share that is transformers' in the second."""
    options, name, more = CASES[case]
    last = END if "cosine" in name else END + 3  # after its end transformers' cosine rises again, the trainers' stays
    found = [factor(TrainerOptions(warmup_steps=warmup, **options), update) for update in range(last + 1)]
    wanted = theirs(name, warmup, more)[: last + 1]
    assert found[warmup:] == pytest.approx(wanted[warmup:], abs=1e-12)
    if "min_lr_ratio" not in more:  # with it transformers' wsd begins at the ratio, not at 0
        assert found[:warmup] == pytest.approx(wanted[1 : warmup + 1], abs=1e-12)
