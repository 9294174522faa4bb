"""The price of the recorder, which every job has: the chain and the master with and without it."""

from __future__ import annotations

from benchmarks.chains import our_steps
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, run_job, times

OFF = "plugins.extensions=[{use: recorder, options: {enabled: false}}]"
NBYTES = 1024
RANKS = 4
PAUSE_S = 0.005


def measure(quick: bool) -> Report:
    """With the recorder: steps of the chain at least 0.98 × as fast, and the master's CPU per step at most 1.02 ×."""
    report = Report("recording", "steps/s of the chain, and the master's CPU, with and without the recorder", quick)
    rounds, steps, paced = (1, 2000, 120) if quick else (9, 200_000, 1200)
    rates: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for recorded in (True, False) if number % 2 == 0 else (False, True):
            overrides = () if recorded else (OFF,)
            rates[recorded].append(our_steps(NBYTES, steps, *overrides))
            cpu[recorded].append(1e6 * _master_cpu(paced, *overrides))
    for recorded, said in ((True, "with"), (False, "without")):
        report.row(f"chain, {said} the recorder", "steps/s", rates[recorded])
    for recorded, said in ((True, "with"), (False, "without")):
        report.row(f"master's CPU, {RANKS} ranks, {said} the recorder", "µs/step", cpu[recorded])
    report.claim("chain: with / without", ratios(rates[True], rates[False]), at_least=0.98)
    report.claim("master's CPU: with / without", ratios(cpu[True], cpu[False]), at_most=1.02)
    report.settings = {"bytes": NBYTES, "steps of the chain": steps, "paced steps": paced, "ranks": RANKS}
    return report


def _master_cpu(steps: int, *overrides: str) -> float:
    """Seconds of the master's CPU per step, at a pace of one step per `PAUSE_S`."""
    job = (f"steps={steps}", f"roles.work.world_size={RANKS}", f"roles.work.options.kwargs.warm={steps // 6}")
    pause = ("roles.work.resources.cpu=0.1", f"roles.work.options.kwargs.pause_s={PAUSE_S}")
    with run_job(JOBS / "controller.yaml", *job, *pause, *overrides) as run_dir:
        noted = times(run_dir)["work-0"]
    return float(noted["master_cpu_s"] / noted["steps"])
