"""200 MB of weights and moments, saved by the named library: ``flashed.py FOLDER track|torch|dcp|dlrover``.

The first life records how long each save has blocked the training, and then waits for a kill. The next records how long
it took to restore the state.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BYTES = 200 << 20
WARM, SAVES = 3, 7
WIDTH = 1024

folder, how = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(BYTES // (3 * 4 * WIDTH * (WIDTH + 1)))))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)


def train() -> None:
    optimizer.zero_grad()
    model(torch.randn(2, WIDTH)).square().mean().backward()
    optimizer.step()


def state() -> dict:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load(found: dict) -> None:
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])


if how == "track":
    from rolemesh_launch import track

    began = time.perf_counter()
    run = track(model=model, optimizer=optimizer)
    restored = time.perf_counter() - began
    save, again = run.done, run.step > 0
elif how == "torch":
    path = folder / "torch.pt"

    def save() -> None:
        with open(path, "wb") as file:
            torch.save(state(), file)
            file.flush()
            os.fsync(file.fileno())

    began = time.perf_counter()
    if again := path.exists():
        load(torch.load(path))
    restored = time.perf_counter() - began
elif how == "dcp":
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    path, stager = folder / "dcp", DefaultStager(StagingOptions(False, False, False, False))

    def parts() -> dict:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def save() -> None:
        global written
        written = dcp.async_save(parts(), storage_writer=dcp.FileSystemWriter(str(path)), async_stager=stager)

    began = time.perf_counter()
    if again := path.exists():
        found = parts()
        dcp.load(found, checkpoint_id=str(path))
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    restored = time.perf_counter() - began
else:
    from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

    keeper, number = DdpCheckpointer(str(folder / "dlrover")), 0

    def save() -> None:
        global number
        number += 1
        where = StorageType.DISK if number == 1 else StorageType.MEMORY
        keeper.save_checkpoint(number, state(), str(folder / "dlrover" / f"{number}.pt"), storage_type=where)

    began = time.perf_counter()
    found = keeper.load_checkpoint()
    if again := bool(found):
        load(found)
    restored = time.perf_counter() - began

pauses, stepped = [], 0.0
for _ in range(WARM + SAVES):
    train()
    stepped = stepped or time.monotonic()
    began = time.perf_counter()
    save()
    pauses.append(time.perf_counter() - began)
    if how == "dcp":
        (getattr(written, "upload_completion", None) or written).result()
    if again:
        break
told = {"pauses": pauses[WARM:], "restored": restored, "stepped": stepped, "pid": os.getpid()}
Path(folder, "new").write_text(json.dumps(told))
Path(folder, "new").rename(folder / ("second" if again else "first"))
while not again:
    time.sleep(0.05)
dist.destroy_process_group()
