"""The conversion of a script's objects to parts of a snapshot, and back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from rolemesh.api.batch import Shard
from rolemesh_launch import track
from rolemesh_launch.states import Blocks, generators, set_generators


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(seed: int, *, shard: bool = False) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    if shard:
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    model(torch.randn(4, 3)).square().mean().backward()
    if seed == 0:
        optimizer.step()
    return model, optimizer


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, DTensor):
        return (
            isinstance(other, DTensor)
            and one.placements == other.placements
            and equal(one._local_tensor, other._local_tensor)
        )
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def places(value: Any) -> set[int]:
    """Return the addresses of the tensors."""
    if isinstance(value, dict):
        return set().union(*map(places, value.values()))
    local = value.to_local() if isinstance(value, DTensor) else value
    return {local.data_ptr()} if isinstance(local, torch.Tensor) else set()


def whole(value: Any) -> Any:
    """As another number of ranks gets it."""
    if isinstance(value, Shard):
        return value.data.clone()
    return {key: whole(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_objects_are_what_they_were(alone: None) -> None:
    for shard in (False, True):
        for change in (lambda state: state, whole):
            objects, others, blocks = trained(0, shard=shard), trained(1, shard=shard), Blocks()
            for one, other in zip(objects, others, strict=True):
                assert not equal(one.state_dict(), other.state_dict())
                blocks.load(other, change(blocks.store(one.state_dict())))
                assert equal(one.state_dict(), other.state_dict())
                assert not places(one.state_dict()) & places(other.state_dict())


def test_dtensors_are_shards_with_their_place_and_nothing_is_copied(alone: None) -> None:
    model, optimizer = trained(0, shard=True)
    stored = Blocks().store({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    weight = stored["model"]["0.weight"]
    assert isinstance(weight, Shard)
    assert (weight.shape, weight.offsets) == ((2, 3), (0, 0))
    assert weight.data.data_ptr() == model.state_dict()["0.weight"].to_local().data_ptr()
    assert isinstance(stored["optimizer"]["state"][0]["exp_avg"], Shard)
    assert stored["optimizer"]["state"][0]["step"].ndim == 0
    assert stored["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)


def test_a_sharded_state_is_not_loaded_into_an_unsharded_one(alone: None) -> None:
    state = Blocks().store(trained(0, shard=True)[0].state_dict())
    with pytest.raises(ValueError, match="it shards otherwise now"):
        Blocks().load(trained(1)[0], state)


def test_generators_go_on_where_they_were_and_a_new_rank_keeps_its_own() -> None:
    def draw() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.randn(), np.random.rand(), float(torch.rand(()))]

    random.gauss(0, 1)
    np.random.randn()
    for rank, world_size in ((0, 1), (1, 2)):
        found = generators(rank, world_size)
        wanted = draw()
        set_generators(found, rank)
        assert draw() == wanted
    rows = {name: np.repeat(shard.data, 2, axis=0) for name, shard in generators(0, 2).items()}
    wanted = draw()
    set_generators(rows, 1)
    assert draw() == wanted
    set_generators(rows, 2)
    assert draw() != wanted


def test_outside_a_job_nothing_is_kept_and_the_script_runs() -> None:
    model, optimizer = trained(0)
    run = track(model=model, optimizer=optimizer)
    assert run.step == 0
    run.done(loss=1.0)
    assert run.step == 1
    with pytest.raises(TypeError, match="has got a list"):
        track(rows=[])  # type: ignore[arg-type]
