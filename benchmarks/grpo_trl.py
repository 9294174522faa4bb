"""The GRPO example beside TRL's `GRPOTrainer` with the same settings: seconds, processor seconds, reward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.grpo import COMMON, job
from benchmarks.inline_grpo import GRPO
from benchmarks.report import Report, ratios
from benchmarks.running import ROOT, BenchmarkError, run_job

GENERATIONS = ("transformers", "vllm")


def measure(quick: bool) -> Report:
    """At most half of the seconds of a step of TRL with either generation that starts."""
    report = Report("grpo_trl", "GRPO on SmolLM2-135M beside TRL", quick)
    if not Path(sys.prefix, "judges", "trl").is_dir():
        report.skipped.append("TRL is not installed: make judges")
        return report
    subprocess.run([sys.executable, str(ROOT / "examples" / "grpo" / "prepare.py")], check=True, stdout=sys.stderr)
    rounds, steps = (1, 1) if quick else (2, 4)
    ours: list[dict[str, float]] = []
    theirs: dict[str, list[dict[str, float]]] = {}
    generations = list(GENERATIONS)
    for _ in range(rounds):
        ours.append(our_steps(steps))
        for generation in generations[:]:
            try:
                theirs.setdefault(generation, []).append(their_steps(steps, generation))
            except BenchmarkError as error:
                report.notes.append(f"TRL with {generation} does not run here: {str(error).splitlines()[-1]}")
                generations.remove(generation)
                theirs.pop(generation)
    for name, found in {"rolemesh, the demo": ours, **{f"TRL, {name}": each for name, each in theirs.items()}}.items():
        report.row(name, "s/step", [each["seconds"] for each in found])
        report.row(name, "processor s/step", [each["processor"] for each in found])
        report.row(f"{name}: mean of the steps' rewards", "reward", [each["reward"] for each in found])
    for name, found in theirs.items():
        both = [each["seconds"] for each in ours], [each["seconds"] for each in found]
        report.claim(f"rolemesh / TRL with {name}", ratios(*both), at_most=0.5)
    report.settings = {"steps": steps, "after warm-up of": 1, "backend": "local", "threads": os.cpu_count()}
    report.notes.append(
        "same questions, model, group size, lengths, rows of an update, loss and learning rate; start-up and "
        "evaluations are not in the figures. TRL computes 8 rows at once: 64 do not fit in 24 GiB"
    )
    return report


def our_steps(steps: int) -> dict[str, float]:
    """Return medians of a step of the demo, after one of warm-up.

    Processor seconds are those of a run, less those of a run without the steps.
    """
    short, _ = _run(2)
    whole, rewards = _run(steps + 2)
    return {
        "seconds": job(steps),
        "processor": (whole - short) / steps,
        "reward": sum(rewards[: steps + 1]) / (steps + 1),
    }


def _run(steps: int) -> tuple[float, list[float]]:
    """Run the demo. Return the processor seconds meanwhile, and the reward of each step."""
    before = _used()
    with run_job(GRPO, f"steps={steps}", *COMMON) as run_dir:
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rewards = {line["step"]: line["reward"] for line in lines if "reward" in line}
    return _used() - before, [rewards[step] for step in sorted(rewards)]


def _used() -> float:
    """Return the processor seconds of the whole machine: a job's processes do not all end as children of this one."""
    user, nice, system, *_ = Path("/proc/stat").read_text().split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def their_steps(steps: int, generation: str) -> dict[str, float]:
    """Return medians of a step of TRL's trainer, after one of warm-up."""
    command = [sys.executable, "-m", "benchmarks.trl_grpo", str(steps + 1), generation]
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **threads})
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    timed = {name: median(found[name][1:]) for name in ("seconds", "processor")}
    return {**timed, "reward": sum(found["reward"]) / len(found["reward"])}
