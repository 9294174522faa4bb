"""A DDP script as anybody has one: each rank notes in a file of its own when it has done a step."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PAUSE_S = 0.02

dist.init_process_group("gloo")
folder, rank, life = Path(sys.argv[1]), dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
with open(folder / f"{life}-{rank}-{os.getpid()}", "w", encoding="ascii") as file:
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 256)).square().mean().backward()
        optimizer.step()
        print(time.monotonic(), file=file, flush=True)
        time.sleep(PAUSE_S)
        stop = torch.tensor(int((folder / "stop").exists()))
        dist.all_reduce(stop)
        if stop:
            break
dist.destroy_process_group()
