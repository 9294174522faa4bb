"""Sixteen ranks with torch, forked from a zygote, against processes and Ray actors that import torch themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError, start_job

SPAWNED = "import time, torch; torch.zeros(1); print(time.monotonic_ns())"


def measure(quick: bool) -> Report:
    """16 torch ranks, the zygote's boot included, in less time than 2 spawned processes."""
    report = Report("start_ranks", "seconds until all ranks have run a torch operation", quick)
    rounds, ranks, actors = (1, 4, 0) if quick else (3, 16, 16)
    zygote: list[float] = []
    whole: list[float] = []
    two: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        since_zygote, since_call = forked(ranks)
        zygote.append(since_zygote)
        whole.append(since_call)
        two.append(spawned(2))
        theirs.append(ray_actors(2))
    report.row(f"rolemesh: {ranks} ranks, from the zygote's start", "s", zygote)
    report.row(f"rolemesh: {ranks} ranks, from the call of the driver (master, agent, everything)", "s", whole)
    report.row("2 spawned Python processes", "s", two)
    report.row("2 Ray actors, Ray up", "s", theirs)
    if actors:
        report.row(f"{actors} spawned Python processes", "s", [spawned(actors)])
        report.row(f"{actors} Ray actors, Ray up", "s", [ray_actors(actors)])
    report.claim(f"{ranks} ranks from the zygote's start / 2 spawned", ratios(zygote, two), at_most=1)
    report.settings = {"ranks": ranks, "preload": "torch", "backend": "local"}
    report.notes.append("a rank has started when the first call of its operator has used torch; all files are cached")
    return report


def forked(ranks: int) -> tuple[float, float]:
    """Seconds until the last rank is in its code: since the zygote was started, and since the driver was called."""
    from rolemesh_local import LocalBackend, LocalOptions

    cpu = f"roles.work.resources.cpu={min(0.1, 0.8 * len(os.sched_getaffinity(0)) / ranks):.3g}"
    noted = start_job(
        JOBS / "enter.yaml",
        LocalBackend(LocalOptions()),
        f"roles.work.world_size={ranks}",
        cpu,
        preload={"work": ("torch",)},
    )
    entered = [values for name, values in noted.items() if name != "driver"]
    if len(entered) != ranks:
        raise BenchmarkError(f"{len(entered)} of {ranks} ranks left a note")
    called = noted["driver"]["called_ns"]
    return max(v["since_zygote_s"] for v in entered), max(v["entered_ns"] - called for v in entered) * 1e-9


def spawned(count: int) -> float:
    """Seconds until the last of `count` new Python processes, started at once, has used torch."""
    began = time.monotonic_ns()
    processes = [
        subprocess.Popen([sys.executable, "-c", SPAWNED], stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    return max(int(process.communicate()[0]) - began for process in processes) * 1e-9


def ray_actors(count: int) -> float:
    """Seconds until the last of `count` Ray actors, created at once, has used torch."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        began = time.monotonic_ns()
        actors = [ray.remote(num_cpus=0)(Enter).remote() for _ in range(count)]
        return (max(ray.get([actor.tick.remote() for actor in actors])) - began) * 1e-9
    finally:
        ray.shutdown()


class Enter:
    """The same as in ``jobs/roles.py``."""

    def tick(self) -> int:
        import torch

        torch.zeros(1)
        return time.monotonic_ns()
