"""After any kill all ranks get back the tracked objects of one common step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torchrun import judged

BIN = Path(sys.executable).parent
TRAIN = """
import hashlib, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from rolemesh_launch import track

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Dropout(0.2), torch.nn.Linear(7, 1))
with torch.no_grad():
    for number, parameter in enumerate(model.parameters()):
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
if sys.argv[1] == "ddp":
    model = DistributedDataParallel(model)
else:
    fully_shard(model[0])
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
run = track(model=model, optimizer=optimizer, schedule=schedule)
print(f"rank {rank} begins at {run.step}", flush=True)
shrinks = sys.argv[2:] == ["shrinks"]
for step in range(run.step, 40 if not shrinks else run.step + 3 if dist.get_world_size() == 1 else 10**6):
    data = torch.randn(4, 9, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if sys.argv[2:] == ["killed"] and (life, rank, step) in ((0, 1, 8), (1, 0, 25)):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    schedule.step()
    run.done(loss=loss)
    if shrinks:
        time.sleep(0.05)
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in whole)).hexdigest()
print(f"rank {rank} ends with {digest}", flush=True)
dist.destroy_process_group()
"""


def plain() -> dict[str, str]:
    """The environment of a person who has set nothing."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder, env=plain(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def digests(out: str) -> set[str]:
    return set(re.findall(r"rank \d ends with ([0-9a-f]+)", out))


def ends(process: subprocess.Popen[str]) -> tuple[str, set[str]]:
    """Return its output, and the digests in it."""
    out, said = process.communicate()
    assert process.returncode == 0, said
    return out, digests(out)


@pytest.mark.parametrize("how", ["fsdp2", pytest.param("ddp", marks=pytest.mark.soak)])
def test_a_script_that_keeps_nothing_itself_ends_alike_when_its_workers_are_killed(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    killed = start(tmp_path, "rolemesh", "launch", "--nproc-per-node", "2", "train.py", how, "killed")
    wanted = digests(judged("--nproc-per-node", "2", "train.py", how, cwd=tmp_path, env=plain()))
    out, found = ends(killed)
    assert found == wanted
    assert len(found) == 1
    first, second, third = zip(*[iter(re.findall(r"rank \d begins at (\d+)", out))] * 2, strict=True)
    assert first == ("0", "0")
    assert second[0] == second[1]
    assert third[0] == third[1]
    assert 0 < int(second[0]) <= 8 <= int(third[0]) <= 25


LARGE = """
import os, signal, time
import torch
import torch.distributed as dist

from rolemesh_launch import track


class Large:
    weights, taken = torch.zeros(24_000_000), 0

    def state_dict(self):
        self.taken += 1
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights.copy_(state["weights"])


dist.init_process_group("gloo")
rank, large = dist.get_rank(), Large()
run = track(large=large)
print(f"rank {rank} begins at {run.step}", flush=True)
for step in range(run.step, 200):
    time.sleep(0.01)
    part = torch.full((10,), float(step + rank))
    dist.all_reduce(part)
    large.weights[step : step + 10] += part
    if step == 150 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print(f"rank {rank} has given its state {large.taken} times", flush=True)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    run.done()
    time.sleep(0.03 * rank)
print(f"the sum of rank {rank} is {large.weights.sum().item()}", flush=True)
"""


@pytest.mark.soak
def test_workers_keep_few_steps_of_a_large_state_and_all_keep_the_same_ones(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LARGE)
    process = start(tmp_path, "rolemesh", "launch", "--nproc-per-node", "2", "train.py")
    out, said = process.communicate()
    assert process.returncode == 0, said
    begun = re.findall(r"begins at (\d+)", out)
    assert begun[2] == begun[3]
    assert 20 < int(begun[2]) <= 150
    totals = re.findall(r"the sum of rank \d is (\S+)", out)
    assert [float(total) for total in totals] == [sum(10.0 * (2 * step + 1) for step in range(200))] * 2
    counts = re.findall(r"given its state (\d+) times", out)
    assert counts
    assert all(int(count) < 25 for count in counts), "96 MB after each of 150 steps would be a third of the time"


@pytest.mark.soak
def test_dtensors_are_cut_for_another_number_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = ("rolemesh", "launch", "--nnodes", "1:2", "--nproc-per-node", "1", "train.py", "fsdp2", "shrinks")
    process = start(tmp_path, *command)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline().endswith("begins at 0\n")
    ends(start(tmp_path, "rolemesh", "scale", "train", "worker=1"))
    out, found = ends(process)
    (step,) = re.findall(r"rank 0 begins at (\d+)", out)
    assert int(step) > 0
    assert len(found) == 1
