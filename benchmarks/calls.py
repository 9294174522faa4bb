"""Calls between roles, 1 KB there and back, from 4 callers to 3 callees; and Ray's actor calls beside them."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import numpy as np

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job, times

CALLERS, CALLEES, AT_ONCE = 4, 3, 32


def measure(quick: bool) -> Report:
    """At least as many calls a second as Ray; where ranks can be started again, at least four times as many."""
    report = Report("calls", "Calls between roles, 1 KB there and back, 4 callers and 3 callees", quick)
    rounds, calls, steps = (1, 320, 4) if quick else (3, 1600, 6)
    plain: list[float] = []
    kept: list[float] = []
    theirs: list[float] = []
    with RayCalls() as ray_calls:
        for _ in range(rounds):
            plain.append(ours(calls, steps))
            kept.append(ours(calls, steps, "failover=[{use: process}]"))
            theirs.append(ray_calls.per_second(calls * (steps - 1) // 4))
    report.row("rolemesh", "calls/s", plain)
    report.row("rolemesh, ranks can be started again", "calls/s", kept)
    report.row("Ray, actor calls", "calls/s", theirs)
    report.claim("ranks can be started again: rolemesh / Ray", ratios(kept, theirs), at_least=4)
    report.claim("rolemesh / Ray", ratios(plain, theirs), at_least=1.0)
    report.settings = {"calls at once, per caller": AT_ONCE, "calls per caller and step": calls, "steps": steps}
    return report


def ours(calls: int, steps: int, *overrides: str) -> float:
    """Calls a second of all callers together."""
    given = (f"steps={steps}", f"roles.caller.options.kwargs={{calls: {calls}, at_once: {AT_ONCE}}}", *overrides)
    with run_job(JOBS / "calls.yaml", *given) as run_dir:
        noted = [times(run_dir)[f"caller-{rank}"] for rank in range(CALLERS)]
    took = max(n["ended_ns"] for n in noted) - min(n["began_ns"] for n in noted)
    return sum(n["calls"] for n in noted) / took * 1e9


class RayCalls:
    """Asynchronous actors that call plain ones."""

    def __enter__(self) -> RayCalls:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        callees = [ray.remote(num_cpus=0.1)(Echo).remote() for _ in range(CALLEES)]
        self._callers: list[Any] = [ray.remote(num_cpus=0.1)(RayCaller).remote(callees, n) for n in range(CALLERS)]
        ray.get([caller.call.remote(AT_ONCE) for caller in self._callers])
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def per_second(self, calls: int) -> float:
        """Calls a second of all callers together, each making `calls`."""
        began = time.perf_counter()
        made = sum(self._ray.get([caller.call.remote(calls) for caller in self._callers]))
        return made / (time.perf_counter() - began)


class Echo:
    """Gives back what it is given."""

    def echo(self, value: Any) -> Any:
        return value


class RayCaller:
    """As ``CallingRole`` in ``jobs/roles.py``."""

    def __init__(self, callees: list[Any], number: int) -> None:
        self.callees, self.next = callees, number
        self.value = np.zeros(1024, np.uint8)

    async def call(self, calls: int) -> int:
        async def some(count: int) -> None:
            for _ in range(count):
                self.next += 1
                await self.callees[self.next % len(self.callees)].echo.remote(self.value)

        await asyncio.gather(*(some(calls // AT_ONCE) for _ in range(AT_ONCE)))
        return AT_ONCE * (calls // AT_ONCE)
