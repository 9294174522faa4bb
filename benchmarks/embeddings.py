"""Rows per second that are looked up and updated: two servers and a worker; Ray's and torch's parameter servers; one
process. The first ones keep no state, as the others; what a failover ladder costs is in rows of its own."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import socket
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from benchmarks.jobs.embedded import different
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job

T = TypeVar("T")

ROWS, MOST, DIM, LR = 20_000, 1_000_000, 32, 0.1
LADDER = ("failover=[{use: process}, {use: job}]",)
CALLS = ("flow=embedded.py:called", "roles.worker.use=embedded.py:Caller")
POPULAR = (*CALLS, "roles.keys.options.popular=true")
CACHE = ("roles.worker.options={cache_rows: 65536, max_age: 8}",)


def measure(quick: bool) -> Report:
    """At least five times Ray's parameter server, and three times torch's."""
    report = Report("embeddings", f"Lookup and update of {ROWS:,} rows of {DIM} float32 in a step", quick)
    rounds, steps = (1, 12) if quick else (3, 60)
    kinds = {
        "rolemesh, lag 1": ours,
        "rolemesh, lag 0": partial(ours, lag=0),
        "rolemesh, calls": partial(ours, more=CALLS),
        "rolemesh, lag 1, with a ladder": partial(ours, more=LADDER),
        "rolemesh, calls, with a ladder": partial(ours, more=CALLS + LADDER),
        "rolemesh, calls, popular keys": partial(ours, more=POPULAR),
        "rolemesh, calls, popular keys, a cache": partial(ours, more=POPULAR + CACHE),
        "Ray, rows": on_ray,
        "Ray, as documented": documented,
        "torch RPC": on_rpc,
        "EmbeddingBag": alone,
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, kind in kinds.items():
            found[name].append(ROWS / statistics.median(kind(steps)))
    for name, samples in found.items():
        report.row(name, "rows/s", samples)
    cached = ratios(found["rolemesh, calls, popular keys, a cache"], found["rolemesh, calls, popular keys"])
    report.row("a cache / none", "×", cached)
    for name, times in (("Ray, as documented", 5), ("torch RPC", 3)):
        report.claim(f"rolemesh, lag 1 / {name}", ratios(found["rolemesh, lag 1"], found[name]), at_least=times)
    report.settings = {"rows of a step": ROWS, "keys": MOST, "values of a row": DIM, "steps": steps, "optimizer": "sgd"}
    return report


def ours(steps: int, lag: int = 1, more: Sequence[str] = ()) -> list[float]:
    """Seconds of a step: the mean without the first quarter, since lines of metrics come several at a time."""
    with run_job(JOBS / "embeddings.yaml", f"steps={10 * steps}", f"params.lag={lag}", *more) as run_dir:
        lines = _late([json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()])
    return [(lines[-1]["time"] - lines[0]["time"]) / (lines[-1]["step"] - lines[0]["step"])]


def alone(steps: int) -> list[float]:
    """One process with a table of torch."""
    server, took = Server(), []
    for step in range(steps):
        began = time.perf_counter()
        keys = different(step, ROWS, MOST)
        server.apply(keys, server.lookup(keys))
        took.append(time.perf_counter() - began)
    return _late(took)


class Server:
    """``nn.EmbeddingBag(sparse=True)`` with SGD."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.table = torch.nn.EmbeddingBag(MOST, DIM, mode="sum", sparse=True)
        self.optimizer = torch.optim.SGD(self.table.parameters(), lr=LR)

    def lookup(self, keys: Any) -> Any:
        """Return the rows of `keys`."""
        return self.table.weight.detach()[np.array(keys)].numpy()

    def apply(self, keys: Any, grads: Any) -> None:
        """Apply the rows' gradients."""
        import torch

        at = torch.from_numpy(np.array(keys))[None]
        self.table.weight.grad = torch.sparse_coo_tensor(at, torch.from_numpy(np.array(grads)), self.table.weight.shape)
        self.optimizer.step()

    def weights(self) -> Any:
        """Return all rows."""
        return self.table.weight.detach().numpy()

    def apply_all(self, grads: Any) -> None:
        """Apply gradients for all rows."""
        import torch

        self.table.weight.grad = torch.from_numpy(np.array(grads))
        self.optimizer.step()


def documented(steps: int) -> list[float]:
    """Ray's example of a parameter server: the worker gets all weights, and sends gradients for all."""
    return on_ray(min(steps, 12), whole=True)


def on_ray(steps: int, whole: bool = False) -> list[float]:
    """The same with rows instead of all weights: an actor has the table, and a worker is another one."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    class Worker:
        def run(self, server: Any, steps: int) -> list[float]:
            took = []
            for step in range(steps):
                began = time.perf_counter()
                keys = different(step, ROWS, MOST)
                if whole:
                    grads = np.zeros((MOST, DIM), np.float32)
                    grads[keys] = ray.get(server.weights.remote())[keys]
                    ray.get(server.apply_all.remote(grads))
                else:
                    ray.get(server.apply.remote(keys, ray.get(server.lookup.remote(keys))))
                took.append(time.perf_counter() - began)
            return took

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        server = ray.remote(num_cpus=1)(Server).remote()
        took: list[float] = ray.get(ray.remote(num_cpus=1)(Worker).remote().run.remote(server, steps))
    finally:
        ray.shutdown()
    return _late(took)


def on_rpc(steps: int) -> list[float]:
    """torch's tutorial of a parameter server with RPC: distributed autograd and a distributed optimizer."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_rpc, args=(rank, port, steps, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    took: list[float] = answers.get(timeout=240)
    for process in processes:
        process.join()
    return _late(took)


_HELD: list[Any] = []


def _table() -> Any:
    from torch.distributed import rpc

    _HELD.append(Server().table)
    return rpc.RRef(_HELD[0].weight)


def _forward(keys: Any) -> Any:
    import torch

    return _HELD[0](keys, torch.arange(len(keys)))


def _rpc(rank: int, port: int, steps: int, answers: Any) -> None:
    import torch
    from torch.distributed import autograd, rpc
    from torch.distributed.optim import DistributedOptimizer

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=2)
    if rank == 1:
        optimizer = DistributedOptimizer(torch.optim.SGD, [rpc.rpc_sync("rank0", _table)], lr=LR)
        took = []
        for step in range(steps):
            began = time.perf_counter()
            keys = torch.from_numpy(different(step, ROWS, MOST))
            with autograd.context() as context:
                rows = rpc.rpc_sync("rank0", _forward, args=(keys,))
                autograd.backward(context, [(rows * rows).sum() / 2])
                optimizer.step(context)
            took.append(time.perf_counter() - began)
        answers.put(took)
    rpc.shutdown()


def _late(samples: list[T]) -> list[T]:
    return samples[len(samples) // 4 :]
