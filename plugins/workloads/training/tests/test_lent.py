"""Trainers send their parameters from lent memory: in place in float32, and copied once in another dtype."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from rolemesh.api.port import LocalPort
from rolemesh.api.workload import RankContext
from rolemesh_training.lent import Lent


class LendingPort(LocalPort):
    """An engine's port that remembers the memory that it has lent."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[torch.Tensor] = []

    def lend(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        found = {name: tensor.clone() for name, tensor in tensors.items()}
        self.memory += found.values()
        return found

    def has(self, tensor: torch.Tensor) -> bool:
        return any(each.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for each in self.memory)


@pytest.fixture
def port() -> LendingPort:
    return LendingPort()


@pytest.fixture
def lent(port: LendingPort) -> Lent:
    return Lent(RankContext(role="trainer", rank=0, generation=0, port=port))


def test_parameters_move_and_train_as_before(lent: Lent, port: LendingPort) -> None:
    torch.manual_seed(0)
    here, there = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    there.load_state_dict(here.state_dict())
    there.tied = there.weight
    lent.move(there)
    assert all(map(port.has, (there.weight.data, there.bias.data)))
    assert there.tied is there.weight
    for model in (here, there):
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            model(torch.full((2, 8), float(step))).sum().backward()
            optimizer.step()
    assert torch.equal(here.weight, there.weight)
    assert all(map(port.has, (there.weight.data, there.bias.data)))


def test_blocks_in_their_own_dtype_are_sent_themselves(lent: Lent, port: LendingPort) -> None:
    blocks = {"a": torch.ones(3), "count": torch.ones(2, dtype=torch.int64), "wide": torch.ones(2, dtype=torch.float64)}
    found = lent.sent(blocks, torch.float32)
    assert all(found[name] is block for name, block in blocks.items())
    assert port.memory == []


def test_copies_in_another_dtype_are_made_in_lent_memory_once(lent: Lent, port: LendingPort) -> None:
    blocks = {"b": torch.rand(4, 4), "a": torch.rand(3), "count": torch.ones(2, dtype=torch.int64)}
    for _ in range(3):
        blocks["a"] += 1
        found = lent.sent(blocks, torch.bfloat16)
        assert torch.equal(found["a"], blocks["a"].to(torch.bfloat16))
        assert torch.equal(found["b"], blocks["b"].to(torch.bfloat16))
        assert found["count"] is blocks["count"]
        assert all(map(port.has, (found["a"], found["b"])))
    assert len(port.memory) == 2
