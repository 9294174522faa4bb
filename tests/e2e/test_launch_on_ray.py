"""`rolemesh launch` on a Ray that is up: what a worker finds there, and how it comes back when it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torchrun import judged
from tests.waiting import until

BIN = Path(sys.executable).parent
TRAIN = """
import hashlib, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rolemesh_launch import track

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = track(model=model, optimizer=optimizer)
print(f"begins at {run.step}\\n", end="", flush=True)
for step in range(run.step, 100):
    data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    run.done()
    time.sleep(0.03)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"ends with {digest}\\n", end="", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.ray
@pytest.mark.soak
def test_a_killed_worker_of_a_script_is_back_on_ray(tmp_path: Path, ray_address: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    flags = ("--address", ray_address, "--nnodes", "2", "--nproc-per-node", "1")

    def cli(*command: str) -> str:
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    calm = judged("--nproc-per-node", "2", "train.py", cwd=tmp_path, env=os.environ, timeout_s=200)
    wanted = set(re.findall("ends with ([0-9a-f]{64})", calm))
    process = subprocess.Popen(
        [str(BIN / "rolemesh"), "launch", *flags, "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: list((tmp_path / ".rolemesh/train/snapshots").glob("step-*/manifest*")), "a checkpoint on disk")
    ranks = json.loads(cli("rolemesh", "status", "train", "--json"))["ranks"]
    assert len({rank["node"] for rank in ranks}) == 2, "one worker a node"
    (pid,) = [rank["pid"] for rank in ranks if rank["rank"] == 1]
    os.kill(pid, signal.SIGKILL)
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert set(re.findall("ends with ([0-9a-f]{64})", out)) == wanted
    assert min(int(step) for step in re.findall(r"begins at (\d+)", out)[2:]) > 0
    assert "worker/0, worker/1 ready again" in said


@pytest.mark.soak
@pytest.mark.ray
def test_a_script_on_ray_finds_the_environment_of_the_command(tmp_path: Path, ray_address: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "own_lib.py").touch()
    code = "import os, own_lib; print(os.environ['FLAG'], hash('a'), os.environ['MY_TOKEN'][::-1])"
    (tmp_path / "show.py").write_text(code)
    given = {"FLAG": "1", "PYTHONPATH": "lib", "PYTHONHASHSEED": "7", "MY_TOKEN": "only-in-memory"}

    def shown(*command: str) -> str:
        return subprocess.run(
            [*command, "show.py"], cwd=tmp_path, env={**os.environ, **given}, capture_output=True, text=True, check=True
        ).stdout

    assert shown(str(BIN / "rolemesh"), "launch", "--address", ray_address) == shown(sys.executable)
    written = [path.read_text(errors="replace") for path in (tmp_path / ".rolemesh").rglob("*") if path.is_file()]
    assert written
    assert not any("only-in-memory" in text for text in written)
