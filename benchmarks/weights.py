"""200 MB of torch weights from the trainer to the rollout, as a share of what memcpy does with the same bytes."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Any

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job, times

WARM = 3


def measure(quick: bool) -> Report:
    """In the rollout's own tensors at ≥ 85 % of memcpy's bandwidth, in its hands and from two ranks ≥ 70 %."""
    report = Report("weights", "weights trainer → rollout through shared memory", quick)
    rounds, nbytes, steps = (1, 20 << 20, 6) if quick else (3, 200 << 20, 15)
    found: dict[str, list[float]] = {}

    def keep(what: str, nanoseconds: float) -> None:
        found.setdefault(what, []).append(nbytes / nanoseconds)

    with RayTransfer(nbytes) as ray_transfer:
        for _ in range(rounds):
            for world_size in (1, 2):
                for what, flow in (("handed", "weights"), ("copied", "own_tensors"), ("unlent", "own_tensors")):
                    there, memcpy, apart = transfer(nbytes, steps, world_size, flow, lends=what != "unlent")
                    keep(f"{what} {world_size}", there)
                    keep(f"memcpy {what} {world_size}", memcpy)
                    if world_size == 1:
                        keep("apart", apart)
            for kind in ("numpy", "torch"):
                keep(f"ray {kind}", ray_transfer.nanoseconds(kind, max(WARM + 2, steps // 3)))
    report.row("memcpy: one numpy.copyto, warm to warm, one thread", "GB/s", found["memcpy handed 1"])
    report.row("memcpy: the same tensors to others, one by one, one thread", "GB/s", found["apart"])
    report.row("rolemesh, trainer of 1 → rollout of 1: in its hands", "GB/s", found["handed 1"])
    report.row("rolemesh, 1 → 1: in buckets, copied into its own tensors", "GB/s", found["copied 1"])
    report.row("the same, not lent: copied twice", "GB/s", found["unlent 1"])
    report.row("rolemesh, trainer of 2 → rollout of 1: in its hands, joined", "GB/s", found["handed 2"])
    report.row("rolemesh, 2 → 1: in buckets, copied into its own tensors", "GB/s", found["copied 2"])
    report.row("the same, not lent", "GB/s", found["unlent 2"])
    report.row("Ray, object store, numpy arrays, 1 → 1: in its hands", "GB/s", found["ray numpy"])
    report.row("Ray, object store, torch tensors, 1 → 1: in its hands", "GB/s", found["ray torch"])
    report.claim("1 → 1 / memcpy", ratios(found["handed 1"], found["memcpy handed 1"]), at_least=0.7)
    for world_size, bound in ((1, 0.85), (2, 0.7)):
        share = ratios(found[f"copied {world_size}"], found[f"memcpy copied {world_size}"])
        report.claim(f"{world_size} → 1, in its own tensors / memcpy", share, at_least=bound)
    report.claim("1 → 1 / Ray with torch tensors", ratios(found["handed 1"], found["ray torch"]), at_least=1)
    report.claim("1 → 1 / Ray with numpy arrays", ratios(found["handed 1"], found["ray numpy"]), at_least=1)
    report.settings = {"bytes": nbytes, "tensors": f"{nbytes >> 22} × float32 (1024, 1024)", "transfers": steps - WARM}
    report.notes.append(
        "memcpy is measured in the trainer's process after each transfer, while all others wait; a sample is the "
        f"median of a job's transfers after the first {WARM}; the time of a transfer is from the return of "
        "trainer.weights (of the last rank) to the entry of rollout.load with all tensors decoded, or from the entry "
        "of trainer.buckets, which yields four matrices of 4 MiB at a time, to the copy of the last one"
    )
    return report


def transfer(nbytes: int, steps: int, world_size: int, flow: str, *, lends: bool) -> tuple[float, float, float]:
    """Median nanoseconds until the weights are where `flow` brings them, of memcpy, and of memcpy tensor by tensor."""
    sizes = [f"roles.{role}.options.kwargs.nbytes={nbytes}" for role in ("trainer", "rollout")]
    lending = f"roles.trainer.options.kwargs.lends={str(lends).lower()}"
    shape = (f"steps={steps}", f"roles.trainer.world_size={world_size}", "roles.trainer.resources.cpu=0.5", lending)
    with run_job(JOBS / "weights.yaml", f"flow=flow.py:{flow}", *sizes, *shape) as run_dir:
        noted = times(run_dir)
    ranks = [noted[f"trainer-{rank}"]["steps"][WARM:] for rank in range(world_size)]
    began = [max(line["began_ns"] for line in lines) for lines in zip(*ranks, strict=True)]
    return (
        median(line["there_ns"] - start for line, start in zip(ranks[0], began, strict=True)),
        median(line["memcpy_ns"] for line in ranks[0]),
        median(line["apart_ns"] for line in ranks[0]),
    )


class RayTransfer:
    """The same two roles as Ray actors; the weights go through the object store."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __enter__(self) -> RayTransfer:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}},
        )
        self._trainer = ray.remote(num_cpus=0)(RayTrainer).remote(self.nbytes)
        self._rollout = ray.remote(num_cpus=0)(RayRollout).remote()
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def nanoseconds(self, kind: str, transfers: int) -> float:
        """Median time from the return of the trainer's method to the entry of the rollout's."""
        found = []
        for _ in range(transfers):
            ref = self._trainer.weights.remote(kind)
            found.append(self._ray.get(self._rollout.load.remote(ref)))
            del ref
        return median(found[WARM:])


class RayTrainer:
    """Holds the same tensors, as numpy arrays and as torch tensors."""

    def __init__(self, nbytes: int) -> None:
        import torch

        from benchmarks.jobs.roles import tensors

        self.numpy = {name: block for name, (block, _, _) in tensors(nbytes).items()}
        self.torch = {name: torch.from_numpy(block) for name, block in self.numpy.items()}

    def weights(self, kind: str) -> tuple[int, dict[str, Any]]:
        value = self.numpy if kind == "numpy" else self.torch
        return monotonic_ns(), value


class RayRollout:
    """Says how long ago the trainer let go of what it got."""

    def load(self, sent: tuple[int, dict[str, Any]]) -> int:
        now = monotonic_ns()
        return now - sent[0]
