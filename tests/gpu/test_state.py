"""Snapshots of what lies on the device, and its random generator."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh.api.batch import Shard
from rolemesh_checkpoint.memory import MemorySnapshots


@pytest.mark.only_gpu
def test_a_snapshot_holds_what_the_device_had_when_it_was_taken(tmp_path: Path) -> None:
    import torch

    memory = MemorySnapshots(tmp_path, "trainer", 0)
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    tensors = {str(d): torch.randn(300, 700, device="cuda").mul_(3).to(d) for d in dtypes}
    tensors["strided"] = torch.randn(100, 200, device="cuda").t()
    tensors["empty"] = torch.empty(0, 5, device="cuda")
    tensors["scalar"] = torch.tensor(3.5, device="cuda")
    for step in range(4):
        for tensor in tensors.values():
            tensor += 1 if tensor.dtype != torch.bool else True
        expected = {name: tensor.cpu() for name, tensor in tensors.items()}
        state = {name: Shard(t, tuple(t.shape), (0,) * t.ndim) for name, t in tensors.items()}
        memory.write(step, {"model": state}, log=0, persist=False)
        for tensor in tensors.values():
            tensor.zero_()
        found = memory.read(step).state
        assert found is not None
        for name, tensor in tensors.items():
            tensor.copy_(found["model"][name].data)
            assert torch.equal(tensor.cpu(), expected[name]), name


@pytest.mark.only_gpu
def test_snapshots_of_a_state_that_grows_lock_and_unlock_their_memory(tmp_path: Path) -> None:
    import torch

    for life in range(2):
        memory = MemorySnapshots(tmp_path, "trainer", 0)
        for step, rows in enumerate((100, 5000, 20_000, 30_000, 50)):
            tensor = torch.full((rows, 100), float(10 * life + step), device="cuda")
            memory.write(step, {"x": Shard(tensor, tuple(tensor.shape), (0, 0))}, log=0, persist=False)
            found = memory.read(step).state
            assert found is not None
            assert torch.equal(torch.as_tensor(found["x"].data).cuda(), tensor)
            del found
        memory.clear()
        memory.close()


@pytest.mark.only_gpu
def test_the_devices_random_generator_goes_on_where_its_state_was_taken() -> None:
    import torch

    from rolemesh_training.generators import generator_states, restore_generators, seed_generators

    device = torch.device("cuda", 0)
    seed_generators(5)
    torch.rand(1000, device=device)
    states = generator_states(device)
    expected = torch.rand(1000, device=device)
    torch.rand(77, device=device)
    restore_generators(states, device)
    assert torch.equal(torch.rand(1000, device=device), expected)
