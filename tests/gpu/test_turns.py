"""Device memory that is given back and taken again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.harness import Job

Make = Callable[..., Job]


def reference(device: str, amount: float) -> str:
    gpu = amount if device == "cuda" else 0
    options = "options: {model: model, init: random, init_seed: 1, frozen: true}"
    return f"roles.reference={{use: fsdp, resources: {{cpu: 0.2, gpu: {gpu}}}, {options}}}"


def test_two_models_that_take_turns_on_the_device_end_as_side_by_side(gpu_job: Make, device: str) -> None:
    beside, turns = gpu_job("beside"), gpu_job("turns")
    shared = ("flow=flow.py:referred", "roles.trainer.options.loss=losses.py:answers", "steps=12")
    done = beside.run(*shared, reference(device, 0.5))
    assert done.returncode == 0, done.stdout + done.stderr
    whole = (reference(device, 1.0), "roles.trainer.resources.gpu=1") if device == "cuda" else (reference(device, 0),)
    groups = "placement={use: collocation, options: {groups: [{roles: [reference, trainer], turns: true}]}}"
    done = turns.run(*shared, *whole, groups, "--chaos", "kills=2,seed=4,targets=rank")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert turns.result()["state_sha256"] == beside.result()["state_sha256"]


@pytest.mark.only_gpu
def test_a_parked_state_leaves_the_device_and_comes_back_in_place() -> None:
    import torch

    from rolemesh_training.parking import Parking

    torch.cuda.init()
    torch.cuda.empty_cache()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    whole = torch.randn(64 << 20, device="cuda")
    parts = [whole[: 32 << 20].view(-1, 1024), whole[32 << 20 :]]
    expected = whole.cpu()
    parking = Parking([*parts, whole])
    assert parking.park() == whole.numel() * 4
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.mem_get_info()[0] >= free - (64 << 20)
    parking.unpark()
    assert torch.equal(whole.cpu(), expected)
    assert parts[0].data_ptr() == whole.data_ptr()
    parts[1].zero_()
    assert not whole[32 << 20 :].any()
