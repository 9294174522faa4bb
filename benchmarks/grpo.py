"""The GRPO example, seconds per step: as a job, and as one hand-written process with everything in line."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.inline_grpo import GRPO
from benchmarks.report import Report, ratios
from benchmarks.running import ROOT, BenchmarkError, run_job

COMMON = ("roles.data.options.held_out=2", "observers=[]")
ALONE = ("roles.trainer.world_size=1", "roles.trainer.resources.cpu=2", "roles.rollout.options.threads=2")
BESIDE = ("roles.trainer.world_size=1", "roles.trainer.resources.cpu=1", "roles.rollout.options.threads=1")


def measure(quick: bool) -> Report:
    """With lag 0 ≤ 1.15 × the hand-written process; with lag 1 less than it."""
    report = Report("grpo", "seconds per step of GRPO on SmolLM2-135M", quick)
    subprocess.run([sys.executable, str(ROOT / "examples" / "grpo" / "prepare.py")], check=True, stdout=sys.stderr)
    rounds, steps = (1, 2) if quick else (2, 6)
    small = ("roles.data.options.prompts_per_step=2", "roles.rollout.options.samples=2") if quick else ()
    inline: list[float] = []
    jobs = {"lag 0": (*ALONE, "params.lag=0"), "lag 1": (*BESIDE, "params.lag=1")}
    jobs |= {} if quick else {"world size 2": ()}
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        inline.append(hand_written(steps, *COMMON[:1], *ALONE, *small))
        for name, overrides in jobs.items():
            found[name].append(job(steps, *overrides, *small))
    report.row("one hand-written process, in line, 2 threads", "s/step", inline)
    report.row("rolemesh, trainer of 1 rank, lag 0, 2 threads each", "s/step", found["lag 0"])
    report.row("rolemesh, trainer of 1 rank, lag 1, 1 thread each", "s/step", found["lag 1"])
    if not quick:
        report.row("rolemesh, the demo: trainer of 2 ranks (FSDP), lag 0", "s/step", found["world size 2"])
    report.claim("lag 0 / hand-written", ratios(found["lag 0"], inline), at_most=1.15)
    report.claim("lag 1 / hand-written", ratios(found["lag 1"], inline), at_most=1)
    report.settings = {"steps": steps, "after warm-up of": 1, "backend": "local", "a sample": "median of a run's steps"}
    report.notes.append("start-up and evaluations (in the first and last step) are not in the figures")
    return report


def hand_written(steps: int, *overrides: str) -> float:
    """Median seconds of a step of the in-line process, after one of warm-up."""
    command = [sys.executable, "-m", "benchmarks.inline_grpo", str(steps + 1), *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return median(seconds[1:])


def job(steps: int, *overrides: str) -> float:
    """Median seconds between the ends of steps 0, 1, … `steps`; the job has one step more, which evaluates."""
    with run_job(GRPO, f"steps={steps + 2}", *COMMON, *overrides) as run_dir:
        return median(_seconds(run_dir)[:steps])


def _seconds(run_dir: Path) -> list[float]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    ended = [line["time"] for line in sorted(lines, key=lambda line: line["step"])]
    return [after - before for before, after in pairwise(ended)]
