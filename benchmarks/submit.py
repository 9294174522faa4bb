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
HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": {cpus}, "include_dashboard": False}})
print("at", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def measure(quick: bool) -> Report:
    """At 4 and 8 ranks, ours with torch preloaded is faster than bare Ray actors without torch."""
    report = Report("submit", "seconds from the driver's call to the last rank's code, Ray up", quick)
    rounds, counts = (1, (1,)) if quick else (3, (1, 2, 4, 8))
    dlrover = os.environ.get(DLROVER_ENV)
    names = ("ours", "bare", *(["dlrover"] if dlrover else []))
    found: dict[tuple[str, int], list[float]] = {(name, n): [] for name in names for n in counts}
    if not dlrover:
        report.skipped.append(
            f"DLRover: {DLROVER_ENV} is not set; point it to a Python with `dlrover==0.6.1 ray==2.60.0 torch` installed"
        )
    for _ in range(rounds):
        for n in counts:
            with ray_head(sys.executable) as address:
                found["bare", n].append(bare_actors(address, n))
                found["ours", n].append(our_job(address, n))
            if dlrover:
                with ray_head(dlrover) as address:
                    found["dlrover", n].append(dlrover_job(dlrover, address, n))
    titles = {
        "ours": "rolemesh, torch preloaded",
        "bare": "bare Ray actors, no torch",
        "dlrover": "DLRover, no torch in the code",
    }
    for name in names:
        for n in counts:
            report.row(f"{n} ranks: {titles[name]}", "s", found[name, n])
    for n in counts[2:] or counts:
        report.claim(f"{n} ranks: rolemesh / bare Ray actors", ratios(found["ours", n], found["bare", n]), at_most=1)
    report.settings = {"settling after ray.init": f"{SETTLE_S:g} s", "CPU of a rank or actor": 0.1}
    report.notes.append(
        "a fresh Ray for each count; each contender is a fresh driver that has joined it and waited, so that Ray has "
        "its idle workers ready (one per CPU); rolemesh's clock starts before the job file is read"
    )
    return report


@contextmanager
def ray_head(python: str) -> Iterator[str]:
    """A Ray of another process; its address."""
    environ = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    cpus = max(4, len(os.sched_getaffinity(0)))
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


def our_job(address: str, ranks: int) -> float:
    """Seconds from the call of the driver to the last rank's operator, torch imported."""
    from rolemesh.backends.ray import RayBackend

    backend = RayBackend(address)
    time.sleep(SETTLE_S)
    noted = start_job(JOBS / "enter.yaml", backend, f"roles.work.world_size={ranks}", preload={"work": ("torch",)})
    called = noted.pop("driver")["called_ns"]
    if len(noted) != ranks:
        raise BenchmarkError(f"{len(noted)} of {ranks} ranks left a note")
    return max(values["entered_ns"] - called for values in noted.values()) * 1e-9


def bare_actors(address: str, count: int) -> float:
    """Seconds from the first `.remote()` to the last actor's method, nothing imported."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        time.sleep(SETTLE_S)
        began = time.monotonic_ns()
        actor = ray.remote(num_cpus=0.1)(Enter)
        actors = [actor.remote() for _ in range(count)]
        return (max(ray.get([a.tick.remote() for a in actors])) - began) * 1e-9
    finally:
        ray.shutdown()


class Enter:
    """Says when it was entered."""

    def tick(self) -> int:
        return time.monotonic_ns()


def dlrover_job(python: str, address: str, workers: int) -> float:
    """Seconds from DLRover's submit() to the last worker's function, in DLRover's own environment."""
    script = Path(__file__).parent / "dlrover_job.py"
    environ = {**os.environ, "PYTHONPATH": str(script.parent)}
    done = subprocess.run(
        [python, str(script), address, str(workers), str(SETTLE_S)],
        capture_output=True, text=True, env=environ, timeout=300, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise BenchmarkError(f"DLRover ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return float(json.loads(lines[-1])["seconds"])
