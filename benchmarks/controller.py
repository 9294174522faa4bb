"""The controller's cost per step as ranks are added: our master, which takes no part in steps, and Ray's driver."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job, times

PAUSE_S = 0.005


def measure(quick: bool) -> Report:
    """Master CPU per step with 16 ranks ≤ 1.3 × that with one."""
    report = Report("controller", "CPU of the controller per step, and steps/s, by number of ranks", quick)
    rounds, steps, ray_steps, counts = (1, 120, 40, (1, 4)) if quick else (3, 1200, 300, (1, 2, 4, 8, 16))
    ours: dict[int, list[float]] = {n: [] for n in counts}
    pace: dict[int, list[float]] = {n: [] for n in counts}
    theirs: dict[int, list[float]] = {n: [] for n in counts}
    rate: dict[int, list[float]] = {n: [] for n in counts}
    with RayDriver() as driver:
        for _ in range(rounds):
            for n in counts:
                cpu, per_second = master_cpu(n, steps)
                ours[n].append(1e6 * cpu)
                pace[n].append(per_second)
                theirs[n].append(1e6 * driver.cpu_per_step(n, ray_steps))
                rate[n].append(driver.steps_per_second(n, ray_steps))
    for n in counts:
        report.row(f"{n:2} ranks: rolemesh, master's CPU", "µs/step", ours[n])
    for n in counts:
        report.row(f"{n:2} ranks: Ray, driver's CPU, same pace", "µs/step", theirs[n])
    for n in counts:
        report.row(f"{n:2} ranks: rolemesh, pace that was kept", "steps/s", pace[n])
    for n in counts:
        report.row(f"{n:2} ranks: Ray, synchronous driver, empty steps", "steps/s", rate[n])
    last = counts[-1]
    report.claim(f"master's CPU per step, {last} ranks / 1 rank", ratios(ours[last], ours[counts[0]]), at_most=1.3)
    report.settings = {"a step": f"{PAUSE_S * 1e3:g} ms of sleep", "our steps": steps, "Ray's steps": ray_steps}
    report.notes.append(
        "job settings are the defaults: metrics every step, the console observer, a driver that watches; "
        "the CPU is that of all threads of the process, from a sixth of the steps on"
    )
    return report


def master_cpu(ranks: int, steps: int) -> tuple[float, float]:
    """Seconds of the master's CPU per step, and the steps per second, of a job of `ranks` ranks."""
    overrides = (f"steps={steps}", f"roles.work.world_size={ranks}", f"roles.work.options.kwargs.warm={steps // 6}")
    cpu = f"roles.work.resources.cpu={min(0.1, 0.8 * len(os.sched_getaffinity(0)) / ranks):.3g}"
    pause = f"roles.work.options.kwargs.pause_s={PAUSE_S}"
    with run_job(JOBS / "controller.yaml", *overrides, cpu, pause) as run_dir:
        noted = times(run_dir)["work-0"]
    return noted["master_cpu_s"] / noted["steps"], noted["steps"] / noted["seconds"]


class RayDriver:
    """Plain Ray, driven step by step: call every actor, wait for all of them."""

    def __enter__(self) -> RayDriver:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._actors: list[Any] = []
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def cpu_per_step(self, actors: int, steps: int) -> float:
        """Seconds of this process's CPU per step, the steps as long as ours."""
        self._ready(actors)
        began = time.process_time()
        for _ in range(steps):
            self._step(actors, PAUSE_S)
        return (time.process_time() - began) / steps

    def steps_per_second(self, actors: int, steps: int) -> float:
        """How many empty steps a second."""
        self._ready(actors)
        began = time.perf_counter()
        for _ in range(steps):
            self._step(actors, 0.0)
        return steps / (time.perf_counter() - began)

    def _ready(self, actors: int) -> None:
        actor = self._ray.remote(num_cpus=0)(Tick)
        self._actors += [actor.remote() for _ in range(actors - len(self._actors))]
        for _ in range(5):
            self._step(actors, 0.0)

    def _step(self, actors: int, pause_s: float) -> None:
        self._ray.get([actor.tick.remote(pause_s) for actor in self._actors[:actors]])


class Tick:
    """The same step as in ``jobs/roles.py``."""

    def tick(self, pause_s: float) -> None:
        if pause_s:
            time.sleep(pause_s)
