"""How a group meets: what is found out before NCCL would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from rolemesh.errors import RolemeshError
from rolemesh_torch.group import _claim


def rank(number: int) -> Any:
    return SimpleNamespace(role="trainer", rank=number, world_size=2)


def test_two_ranks_on_one_gpu_are_refused_with_a_remedy() -> None:
    store = dist.PrefixStore("0", dist.HashStore())
    _claim(store, rank(1), "GPU-a")
    with pytest.raises(RolemeshError, match="ranks 1 and 0 of role trainer share the GPU GPU-a") as caught:
        _claim(store, rank(0), "GPU-a")
    assert "roles.trainer.resources.gpu to 1" in str(caught.value.remedy)


def test_ranks_on_gpus_of_their_own_meet_also_when_they_start_again() -> None:
    store = dist.HashStore()
    for generation in ("0", "1"):
        for number in (0, 1):
            _claim(dist.PrefixStore(generation, store), rank(number), f"GPU-{1 - number}")
