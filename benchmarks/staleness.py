"""GRPO with weights that are at most two updates old, beside lag 0 and a hand-written loop: time to 0.8 of the held-out
questions, and the reward after equal numbers of samples."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, ROOT, BenchmarkError, run_job

JOB = JOBS / "short_grpo.yaml"
TASKS = ("reverse", "larger", "plus")
KINDS = ("asynchronous", "lag 0", "hand-written")
TARGET, EVERY = 0.8, 2
ASYNCHRONOUS = ("params.lag=2",)
"""Rollout and trainer work at the same time, with one thread each."""
LAG_0 = (
    "params.lag=0",
    "roles.rollout.options.threads=2",
    "roles.rollout.resources.cpu=0",
    "roles.trainer.resources.cpu=2",
)
"""They take turns, so each has both cores."""


class Trained(NamedTuple):
    """One run: the seconds of each evaluation since the first step's begin, and its accuracy; rewards by step."""

    evaluations: list[tuple[float, float]]
    rewards: list[float]
    seconds_per_step: float

    @property
    def to_target(self) -> float | None:
        """The seconds until the first evaluation that reached `TARGET`; None if none did."""
        return next((seconds for seconds, accuracy in self.evaluations if accuracy >= TARGET), None)

    @property
    def late_reward(self) -> float:
        """The mean reward of the last third of the steps."""
        return fmean(self.rewards[-(len(self.rewards) // 3) :])


def measure(quick: bool) -> Report:
    """Asynchronous: sooner at 0.8 than lag 0 and than the loop; the reward within 0.03 of that of lag 0."""
    report = Report("staleness", "GRPO of SmolLM2-135M with weights of at most two updates", quick)
    subprocess.run([sys.executable, str(ROOT / "examples" / "grpo" / "prepare.py")], check=True, stdout=sys.stderr)
    tasks, seeds, steps = (TASKS[:1], (0,), 3) if quick else (TASKS, (0, 1, 2), 12)
    found: dict[tuple[str, str], list[Trained]] = {}
    for seed in seeds:
        for task in tasks:
            for kind, overrides in (("asynchronous", ASYNCHRONOUS), ("lag 0", LAG_0)):
                found.setdefault((kind, task), []).append(job(task, seed, steps, *overrides))
            if task == tasks[0]:
                found.setdefault(("hand-written", task), []).append(hand_written(task, seed, steps))
    fill(report, found, tasks)
    report.settings = {
        "steps": steps,
        "samples of a step": 48,
        "seeds": len(seeds),
        "evaluated every": f"{EVERY} steps",
    }
    return report


def fill(report: Report, found: Mapping[tuple[str, str], list[Trained]], tasks: Sequence[str]) -> None:
    """Add the rows and claims of the runs, which are there by kind and task, a run for each seed."""
    for kind in KINDS:
        runs = found[kind, tasks[0]]
        report.row(f"{tasks[0]}: {kind}", "s/step", [each.seconds_per_step for each in runs])
    _times(report, {kind: found[kind, tasks[0]] for kind in KINDS})
    for task in tasks:
        ours, theirs = ([each.late_reward for each in found[kind, task]] for kind in KINDS[:2])
        report.row(f"{task}: reward of the last third, asynchronous", "reward", ours)
        report.row(f"{task}: reward of the last third, lag 0", "reward", theirs)
        apart = [abs(fmean(theirs) - fmean(ours))]
        report.claim(f"{task}: |lag 0 - asynchronous|, means over the seeds", apart, at_most=0.03, unit="reward")
    report.notes.append("start-up is not in the figures")
    report.notes.append("the hand-written loop has two threads, and so have both roles of lag 0")


def _times(report: Report, runs: dict[str, list[Trained]]) -> None:
    """Report the times to the target of the seeds that reached it in all kinds of runs."""
    times = {kind: [each.to_target for each in each_kind] for kind, each_kind in runs.items()}
    whole = [seed for seed, row in enumerate(zip(*times.values(), strict=True)) if None not in row]
    if not whole:
        reached = {kind: sum(each is not None for each in row) for kind, row in times.items()}
        report.skipped.append(f"time to {TARGET}: no seed reached it in all kinds of runs; reached by {reached}")
        return
    kept = {
        kind: [each for seed, each in enumerate(row) if seed in whole and each is not None]
        for kind, row in times.items()
    }
    for kind, row in kept.items():
        report.row(f"time to {TARGET} of the held-out questions: {kind}", "s", row)
    for kind in ("lag 0", "hand-written"):
        report.claim(f"time to {TARGET}: asynchronous / {kind}", ratios(kept["asynchronous"], kept[kind]), at_most=1)


def job(task: str, seed: int, steps: int, *overrides: str) -> Trained:
    """Run the job."""
    given = (f"steps={steps}", f"seed={seed}", f"params.every={EVERY}", f"roles.questions.options.kwargs.task={task}")
    with run_job(JOB, *given, *overrides) as run_dir:
        lines = sorted(_lines(run_dir / "metrics.jsonl"), key=lambda line: int(line["step"]))
        began = next(event["time"] for event in _lines(run_dir / "events.jsonl") if event["kind"] == "job_running")
    at = [line["time"] - began for line in lines]
    evaluations = [(s, line["eval_accuracy"]) for s, line in zip(at, lines, strict=True) if "eval_accuracy" in line]
    return Trained(evaluations, [line["reward"] for line in lines], _per_step(at))


def hand_written(task: str, seed: int, steps: int) -> Trained:
    """Run the loop in a process of its own."""
    given = {"model": str(ROOT / ".cache" / "SmolLM2-135M-Instruct"), "task": task, "seed": seed, "steps": steps}
    given |= {"samples": 8, "prompts": 6, "held_out": 24, "max_tokens": 5, "every": EVERY, "threads": 2}
    given |= {"lr": 1e-5, "warmup_steps": 2}
    command = [sys.executable, "-m", "benchmarks.plain_grpo", json.dumps(given)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"the hand-written loop ended with {done.returncode}:\n{done.stderr[-4000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    return Trained([(s, accuracy) for s, accuracy in told["evaluations"]], told["rewards"], _per_step(told["ends"]))


def _per_step(ends: Sequence[float]) -> float:
    """Return the median seconds of a pair of steps, halved: one of each pair has an evaluation."""
    return median(after - before for before, after in pairwise(ends[::EVERY])) / EVERY


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
