"""From submitting a job to every rank's first line of code, on a Ray that is up: ours, bare actors, DLRover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError, start_job

DLROVER_ENV = "DLROVER_PYTHON"
SETTLE_S = 2.0
"""Long enough for Ray to have the workers ready that it starts for each driver that joins: one per CPU."""
HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": {cpus}, "include_dashboard": False}})
print("at", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def measure(quick: bool) -> Report:
    """Ours with torch preloaded: ≤ 1.5 × one bare Ray actor that imports torch; at 8 ranks less than bare actors
    without torch."""
    report = Report("submit", "seconds from the driver's call to the last rank's code, Ray up", quick)
    rounds, counts, waits = (1, (1,), (0.0,)) if quick else (3, (1, 2, 4, 8), (0.0, SETTLE_S))
    dlrover = os.environ.get(DLROVER_ENV)
    if not dlrover:
        report.skipped.append(
            f"DLRover: {DLROVER_ENV} is not set; see benchmarks/README.md for the Python that it should point to"
        )
    found: dict[tuple[str, int, float], list[float]] = {}
    heavy: list[float] = []
    for _ in range(rounds):
        with ray_head(sys.executable) as address:
            heavy.append(bare_actors(address, 1, 0.0, Heavy))
        for n in counts:
            for wait in waits:
                for name, contender in (("bare", bare_actors), ("ours", our_job)):
                    with ray_head(sys.executable) as address:
                        found.setdefault((name, n, wait), []).append(contender(address, n, wait))
            if dlrover:
                with ray_head(dlrover) as address:
                    found.setdefault(("dlrover", n, 0.0), []).append(dlrover_job(dlrover, address, n))
    titles = {"ours": "rolemesh, torch preloaded", "bare": "bare Ray actors, no torch", "dlrover": "DLRover, no torch"}
    report.row("at once: one bare Ray actor that imports torch", "s", heavy)
    for wait in waits:
        when = f"{wait:g} s after joining" if wait else "at once"
        for name, title in titles.items():
            for n in counts:
                if samples := found.get((name, n, wait)):
                    report.row(f"{when}, {n} ranks: {title}", "s", samples)
        for n in counts:
            share = ratios(found["ours", n, wait], heavy)
            report.claim(f"{when}, {n} ranks: rolemesh / one bare actor that imports torch", share, at_most=1.5)
        share = ratios(found["ours", counts[-1], wait], found["bare", counts[-1], wait])
        report.claim(f"{when}, {counts[-1]} ranks: rolemesh / bare actors", share, at_most=1)
    report.settings = {"Ray's num_cpus": len(os.sched_getaffinity(0)), "CPU of a rank or actor": 0.1}
    report.notes.append(
        "a fresh Ray for each contender each time, which it joins as a driver; the clock starts at its first call "
        "after ray.init, rolemesh's before the job file is read"
    )
    return report


@contextmanager
def ray_head(python: str) -> Iterator[str]:
    """A Ray of another process; its address."""
    environ = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "DLROVER_EVENT_ENABLE": "false"}
    cpus = len(os.sched_getaffinity(0))
    head = subprocess.Popen(
        [python, "-c", HEAD.format(cpus=cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert head.stdin is not None
    assert head.stdout is not None
    try:
        said = next((line for line in head.stdout if line.startswith("at ")), None)
        if said is None:
            raise BenchmarkError(f"{python} could not start a Ray")
        yield said.split()[1]
    finally:
        head.stdin.close()
        head.wait()


def our_job(address: str, ranks: int, wait_s: float) -> float:
    """Seconds from the call of the driver to the last rank's operator, torch imported."""
    from rolemesh_ray.backend import RayBackend, RayOptions

    backend = RayBackend(RayOptions(address=address))
    time.sleep(wait_s)
    noted = start_job(JOBS / "enter.yaml", backend, f"roles.work.world_size={ranks}", preload={"work": ("torch",)})
    called = noted.pop("driver")["called_ns"]
    if len(noted) != ranks:
        raise BenchmarkError(f"{len(noted)} of {ranks} ranks left a note")
    return max(values["entered_ns"] - called for values in noted.values()) * 1e-9


def bare_actors(address: str, count: int, wait_s: float, cls: type[Enter] | None = None) -> float:
    """Seconds from the first `.remote()` to the last actor's method; `cls` says what an actor imports before."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        time.sleep(wait_s)
        began = time.monotonic_ns()
        actor = ray.remote(num_cpus=0.1)(cls or Enter)
        actors = [actor.remote() for _ in range(count)]
        return (max(ray.get([a.tick.remote() for a in actors])) - began) * 1e-9
    finally:
        ray.shutdown()


class Enter:
    """Says when it was entered."""

    def tick(self) -> int:
        return time.monotonic_ns()


class Heavy(Enter):
    """An actor that imports torch when it starts."""

    def __init__(self) -> None:
        import torch

        self.device = torch.device("cpu")


def dlrover_job(python: str, address: str, workers: int) -> float:
    """Seconds from DLRover's submit() to the last worker's function, in DLRover's own environment."""
    script = Path(__file__).parent / "dlrover_job.py"
    environ = {**os.environ, "PYTHONPATH": str(script.parent)}
    done = subprocess.run(
        [python, str(script), address, str(workers)],
        capture_output=True, text=True, env=environ, timeout=300, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchmarkError(f"DLRover ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return float(json.loads(lines[-1])["seconds"])
