"""`--nnodes MIN:MAX`: a lost node is done without, and one that comes is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.harness import whole_lines
from tests.waiting import until

from rolemesh_durable.control.client import ControlClient
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.scalers import Load, RoleLoad
from rolemesh_launch.room import Room, RoomOptions

BIN = Path(sys.executable).parent
TRAIN = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rolemesh_launch import track

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = track(model=model, optimizer=optimizer)
seen = {name: os.environ[name] for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK")}
for step in range(run.step, 10**6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    run.done()
    if seen:
        print("steps", run.step - 1, *seen.values(), flush=True)
        seen = {}
    time.sleep(0.02)
    stop = torch.tensor(int(Path("stop").exists()))
    dist.all_reduce(stop)
    if stop:
        break
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("room", "wanted"), [(2, None), (3, None), (4, 4), (7, 6), (9, 6)])
def test_whole_nodes_are_taken_in_as_there_is_room(room: int, wanted: int | None) -> None:
    load = Load(1.0, 60.0, (RoleLoad("worker", 2, 2, 6, room, 0.9),), ())
    found = Room(RoomOptions(per_node=2)).decide(load)
    assert (found.sizes if found else None) == ({"worker": wanted} if wanted else None)


@pytest.mark.more
def test_a_lost_node_is_done_without_and_one_that_comes_is_used(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    flags = ("--nnodes", "1:2", "--nproc-per-node", "2", "--nodes", "3x(cpu=2)", "--log-dir", "runs")
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            [str(BIN / "rolemesh"), "launch", *flags, "train.py"], cwd=tmp_path, env=plain, stdout=out, stderr=out
        )
    run = tmp_path / "runs" / "train"

    def begun(world_size: str) -> list[list[str]]:
        lines = [line.split() for line in (tmp_path / "out").read_text().splitlines() if line.startswith("steps ")]
        return [line for line in lines if line[2] == world_size]

    until(lambda: len(begun("4")) == 4, "two nodes")
    folder = Path(json.loads((run / "control.json").read_text())["endpoint"].removeprefix("ipc://")).parent
    spare = folder / "lost-node-2"
    spare.touch()
    until(lambda: list((run / "snapshots").glob("step-*/manifest*")), "a checkpoint on disk")
    with ControlClient(run) as client:
        client.ask(InjectFault("kill", "node:node-1"))
    fewer = until(lambda: len(begun("2")) == 2 and begun("2"), "one node")
    kinds = [event["kind"] for event in whole_lines(run / "events.jsonl")]
    assert "waiting_for_nodes" not in kinds, "the job does without it at once"
    assert all(int(line[1]) > 0 for line in fewer), "it goes on from what was kept"
    assert sorted(line[2:6] for line in fewer) == [["2", "1", "2", rank] for rank in "01"]
    spare.unlink()
    more = until(lambda: len(begun("4")) == 8 and begun("4")[4:], "two nodes again")
    assert min(int(line[1]) for line in more) > max(int(line[1]) for line in fewer)
    assert sorted(line[2:6] for line in more) == [["4", "2", "2", rank] for rank in "0123"]
    (tmp_path / "stop").touch()
    assert process.wait() == 0, (tmp_path / "out").read_text()
