"""The roles of the benchmarks' jobs. They note times (CLOCK_MONOTONIC, equal in all processes) in the run's folder."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns, process_time
from typing import Any

import numpy as np

from rolemesh import Balanced, Batch, Broadcast, RankContext, Shard, Sharded, Shards, Split, operator, service

BUCKET = 4
"""Matrices of 4 MiB that are sent together."""


def note(ctx: RankContext, **values: Any) -> None:
    """Leave `values` for the benchmark, as ``<role>-<rank>.times.json`` in the run's folder."""
    path = ctx.run_dir / f"{ctx.role}-{ctx.rank}.times.json"
    path.with_suffix(".tmp").write_text(json.dumps(values))
    path.with_suffix(".tmp").rename(path)


class Source:
    """The same array of `nbytes` every step: making it costs nothing."""

    def __init__(self, nbytes: int) -> None:
        self.value = np.zeros(nbytes, np.uint8)

    @operator(returns=Broadcast())
    def make(self) -> np.ndarray:
        return self.value


class Relay:
    """Hands on what it gets."""

    @operator(value=Broadcast(), returns=Broadcast())
    def hand(self, value: np.ndarray) -> np.ndarray:
        return value


class Sink:
    """Looks at both ends of what it gets, and at its clocks after `warm` steps and after the last."""

    def __init__(self, ctx: RankContext, warm: int) -> None:
        self.ctx, self.warm, self.last, self.sum = ctx, warm, ctx.steps - 1, 0
        self.began, self.worked = 0, 0.0

    @operator(value=Broadcast())
    def take(self, value: np.ndarray) -> None:
        self.sum += int(value[0]) + int(value[-1])
        if self.ctx.step == self.warm:
            self.began, self.worked = monotonic_ns(), process_time()
        elif self.ctx.step == self.last:
            seconds, cpu_s = (monotonic_ns() - self.began) * 1e-9, process_time() - self.worked
            note(self.ctx, steps=self.last - self.warm, seconds=seconds, cpu_s=cpu_s)


class Tick:
    """A step of `pause_s`; rank 0 notes what CPU the master has used between step `warm` and the last."""

    def __init__(self, ctx: RankContext, warm: int, pause_s: float) -> None:
        self.ctx, self.warm, self.pause_s, self.last = ctx, warm, pause_s, ctx.steps - 1
        self.cpu = self.began = 0
        self.next = 0.0
        control = json.loads((ctx.run_dir / "control.json").read_text()) if ctx.rank == 0 else {"pid": 0}
        self.master = control["pid"]

    def tick(self) -> None:
        step = self.ctx.step
        if self.pause_s:
            self.next = max(self.next + self.pause_s, time.monotonic())
            time.sleep(max(0.0, self.next - time.monotonic() + self.pause_s))
        if self.ctx.rank:
            return
        if step == self.warm:
            self.cpu, self.began = cpu_ns(self.master), monotonic_ns()
        elif step == self.last:
            seconds = (monotonic_ns() - self.began) * 1e-9
            cpu_s = (cpu_ns(self.master) - self.cpu) * 1e-9
            note(self.ctx, steps=self.last - self.warm, seconds=seconds, master_cpu_s=cpu_s)


class Count:
    """Counts the rows it gets: that is its state. Its setup imports the module `imports`, its step takes `pause_s`."""

    def __init__(self, imports: str = "", pause_s: float = 0.0) -> None:
        if imports:
            importlib.import_module(imports)
        self.rows, self.pause_s = 0, pause_s

    @operator(rows=Broadcast())
    def take(self, rows: Batch) -> None:
        time.sleep(self.pause_s)
        self.rows += rows.rows

    def snapshot(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def restore(self, state: dict[str, Any]) -> None:
        self.rows = int(state["rows"])


def cpu_ns(pid: int) -> int:
    """Nanoseconds of CPU that all threads of a process have had (the first field of their schedstat)."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


class Enter:
    """Notes when its code was entered first, and when the zygote that it was forked from was started."""

    def __init__(self, ctx: RankContext) -> None:
        self.ctx = ctx

    def tick(self) -> None:
        import torch

        torch.zeros(1)
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
        zygote_s = ticks / os.sysconf("SC_CLK_TCK")
        booted_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        note(self.ctx, entered_ns=monotonic_ns(), since_zygote_s=booted_s - zygote_s)


def tensors(nbytes: int, rank: int = 0, world_size: int = 1) -> dict[str, tuple[np.ndarray, tuple[int, int], int]]:
    """A model's worth of float32 matrices with 1024 columns, 4 MiB each: block, global shape, first row."""
    found = {}
    count = nbytes >> 22
    for i in range(count):
        rows = 1024
        first, last = rows * rank // world_size, rows * (rank + 1) // world_size
        found[f"layers.{i}.weight"] = (np.full((last - first, 1024), i, np.float32), (rows, 1024), first)
    return found


class Trainer:
    """Gives torch weights; after each transfer, measures memcpy of as many bytes on the quiet machine."""

    def __init__(self, ctx: RankContext, nbytes: int, lends: bool = True) -> None:
        import torch

        torch.set_num_threads(1)
        self.ctx = ctx
        self.held = Shards()
        parts = tensors(nbytes, ctx.rank, ctx.world_size)
        held = {name: torch.from_numpy(block) for name, (block, _, _) in parts.items()}
        held = ctx.lend(held) if lends else held
        for name, (_, shape, first) in parts.items():
            self.held[name] = Shard(held[name], shape, (first, 0))
        self.source, self.target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        self.targets = [np.ones_like(shard.data.numpy()) for shard in self.held.values()]
        self.began: list[int] = []
        self.lines: list[dict[str, Any]] = []

    @operator(returns=Sharded())
    def weights(self) -> Shards:
        self.began.append(monotonic_ns())
        return self.held

    @operator(returns=Sharded())
    def buckets(self) -> Iterator[Shards]:
        """The same some matrices at a time, so that the first are taken while the next are sent."""
        self.began.append(monotonic_ns())
        names = list(self.held)
        for first in range(0, len(names), BUCKET):
            yield Shards({name: self.held[name] for name in names[first : first + BUCKET]})

    @operator(seen=Broadcast())
    def seen(self, seen: Batch) -> None:
        line = {"began_ns": self.began[-1], "there_ns": int(seen["at"][0])}
        if self.ctx.rank == 0:
            begun = monotonic_ns()
            np.copyto(self.target, self.source)
            line["memcpy_ns"] = monotonic_ns() - begun
            for source, target in zip(self.held.values(), self.targets, strict=True):
                np.copyto(target, source.data.numpy())
            line["apart_ns"] = monotonic_ns() - begun - line["memcpy_ns"]
        self.lines.append(line)
        if self.ctx.step == self.ctx.steps - 1:
            note(self.ctx, steps=self.lines)


class Rollout:
    """Notes when the weights are in its hands; or, copied as they come, in its own tensors, as an engine has them."""

    def __init__(self, ctx: RankContext, nbytes: int) -> None:
        import torch

        torch.set_num_threads(1)
        self.own = {name: torch.from_numpy(block) for name, (block, _, _) in tensors(nbytes).items()}

    @operator(weights=Broadcast(), returns=Broadcast())
    def load(self, weights: dict[str, Any]) -> Batch:
        assert weights.keys() == self.own.keys()
        return Batch({"at": np.array([monotonic_ns()])})

    @operator(weights=Sharded(dim=None), returns=Broadcast(), streaming=True)
    def copy(self, weights: Iterator[dict[str, list[Shard]]]) -> Batch:
        copied = 0
        for bucket in weights:
            for name, shards in bucket.items():
                for shard in shards:
                    shard.into(self.own[name])
                    copied += shard.data.nbytes
        assert copied == sum(tensor.nbytes for tensor in self.own.values())
        return Batch({"at": np.array([monotonic_ns()])})


class CallingRole:
    """Makes `calls` calls of 1 KB a step, `at_once` of them at a time; notes how long all steps but the first took."""

    def __init__(self, ctx: RankContext, calls: int = 2000, at_once: int = 32) -> None:
        self.ctx, self.calls, self.at_once, self.began = ctx, calls, at_once, 0
        self.value = np.zeros(1024, np.uint8)

    async def call(self) -> None:
        ctx = self.ctx
        if ctx.step == 1:
            self.began = monotonic_ns()

        async def some(count: int) -> None:
            for _ in range(count):
                answer = await ctx.call("callee", "echo", self.value)
                assert answer.nbytes == 1024

        await asyncio.gather(*(some(self.calls // self.at_once) for _ in range(self.at_once)))
        if ctx.step == ctx.steps - 1:
            made = (ctx.steps - 1) * self.at_once * (self.calls // self.at_once)
            note(ctx, calls=made, began_ns=self.began, ended_ns=monotonic_ns())


class CalledRole:
    """Gives back what it is given."""

    @service
    def echo(self, value: np.ndarray) -> np.ndarray:
        return value


class Numbers:
    """Row numbers."""

    def __init__(self, ctx: RankContext, rows: int) -> None:
        self.ctx, self.rows = ctx, rows

    @operator(returns=Broadcast())
    def next(self) -> Batch:
        first = self.ctx.step * self.rows
        return Batch({"x": np.arange(first, first + self.rows)})


class Naps:
    """Sleeps for each row: `mean_s` on average, log-normally spread with `sigma`; rank 0 `slow` times as long."""

    def __init__(self, ctx: RankContext, mean_s: float, sigma: float, slow: float) -> None:
        self.ctx, self.sigma = ctx, sigma
        self.median_s = mean_s / float(np.exp(sigma**2 / 2)) * (slow if ctx.rank == 0 else 1)

    def nap(self, rows: Batch) -> Batch:
        for x in rows["x"].tolist():
            time.sleep(self.median_s * float(np.exp(self.sigma * self.ctx.rng(x).standard_normal())))
        return rows

    @operator(rows=Balanced(), returns=Split())
    def shared(self, rows: Batch) -> Batch:
        return self.nap(rows)

    @operator(rows=Split(), returns=Split())
    def parts(self, rows: Batch) -> Batch:
        return self.nap(rows)


class Collector(Sink):
    """A sink of rows, with state: it may take what is finished first."""

    @operator(value=Broadcast())
    def take(self, value: Batch) -> None:
        super().take(value["x"])

    def snapshot(self) -> dict[str, Any]:
        return {"sum": self.sum}

    def restore(self, state: dict[str, Any]) -> None:
        self.sum = int(state["sum"])
