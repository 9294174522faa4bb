"""The loop of examples/pretrain as a script of torchrun: FSDP2 over the same model, text, batch, optimizer, schedule.

Rank 0 writes when each step ended, of CLOCK_MONOTONIC.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

WINDOW, ROWS, LR, WARM_UP = 128, 16, 3e-3, 20


def factor(step: int, steps: int = 300, least: float = 0.1) -> float:
    """Return the factor of the learning rate: a warm-up, then a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return least + (1 - least) * (1 + math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP))) / 2


def main(example: Path, text: Path, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(example / "model"))
    sharding = {"mesh": init_device_mesh("cpu", (size,)), "reshard_after_forward": False}
    for layer in model.model.layers:
        fully_shard(layer, **sharding)
    fully_shard(model, **sharding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    read = b"\n".join(path.read_bytes() for path in sorted(text.glob("*.md")))
    count = len(read) // WINDOW
    windows = np.frombuffer(read, dtype=np.uint8)[: count * WINDOW].reshape(count, WINDOW)
    order = np.random.default_rng(0).permutation(count)
    ended = []
    for step in range(steps):
        chosen = order[np.arange(step * ROWS, (step + 1) * ROWS) % count]
        ids = torch.from_numpy(np.array_split(windows[chosen], size)[rank].astype(np.int64))
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        shown = torch.stack([loss.detach(), norm.full_tensor()])
        dist.all_reduce(shown)
        shown.tolist()
        ended.append(time.monotonic())
    if rank == 0:
        Path(out).write_text(json.dumps(ended))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
