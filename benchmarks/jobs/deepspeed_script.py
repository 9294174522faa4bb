"""The job `deepspeed_step` as a script of DeepSpeed's own launcher. Rank 0 records the seconds of each step."""

from __future__ import annotations

import json
import os
import sys
import time

import deepspeed
import numpy as np
import torch
from benchmarks.jobs.deepspeed_rows import rows
from transformers import AutoConfig, AutoModelForCausalLM


def main(folder: str, stage: int, steps: int, out: str) -> None:
    os.setsid()  # as ranks have it, and torchrun's workers: Linux shares a busy machine out by session (autogroup)
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # as the workload has it: no compiling
    deepspeed.init_distributed("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
    }
    groups = [  # as the workload and transformers' Trainer make them, and with the decay of the job: none
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        ids = torch.from_numpy(np.array_split(rows(step), size)[rank]).long()
        loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(seconds, file)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(given[0], int(given[1]), int(given[2]), given[3])
