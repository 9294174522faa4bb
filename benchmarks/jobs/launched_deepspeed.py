"""A DeepSpeed script, ZeRO 2: each rank notes in a file of its own when it has done a step."""

import os
import sys
import time
from pathlib import Path

import deepspeed
import torch

PAUSE_S = 0.02

os.environ.setdefault("DS_ACCELERATOR", "cpu")
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as the workload has it: no compiling
deepspeed.init_distributed("gloo")
folder, rank, life = Path(sys.argv[1]), torch.distributed.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
model = torch.nn.Linear(256, 256)
config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config=config)
with open(folder / f"{life}-{rank}-{os.getpid()}", "w", encoding="ascii") as file:
    while True:
        engine.backward(engine(torch.randn(8, 256)).square().mean())
        engine.step()
        print(time.monotonic(), file=file, flush=True)
        time.sleep(PAUSE_S)
        stop = torch.tensor(int((folder / "stop").exists()))
        torch.distributed.all_reduce(stop)
        if stop:
            break
torch.distributed.destroy_process_group()
