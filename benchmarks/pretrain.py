"""Tokens per second of examples/pretrain beside the same loop as a script under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs.pretrained import ROWS, WINDOW
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, ROOT, BenchmarkError, run_job

__all__ = ["measure"]

EXAMPLE = ROOT / "examples/pretrain"
WARM_UP = 20


def measure(quick: bool) -> Report:
    """At least 0.97 of torchrun's throughput; two ranks, FSDP2."""
    report = Report("pretrain", "pre-training: the example, and the same loop under torchrun", quick)
    rounds, steps = (1, 30) if quick else (4, 100)
    ours, theirs = [], []
    for number in range(rounds):
        for way in (job, launched) if number % 2 else (launched, job):
            (ours if way is job else theirs).append(way(steps))
    report.row("the example", "tokens/s", ours)
    report.row("the script under torchrun", "tokens/s", theirs)
    report.claim("tokens/s: the example / the script", ratios(ours, theirs), at_least=0.97)
    report.settings = {
        "rounds": rounds,
        "steps": steps,
        "left out": WARM_UP,
        "ranks": 2,
        "tokens of a step": ROWS * WINDOW,
    }
    report.notes.append("the example is as it stands, a snapshot after each step included, but is not evaluated")
    return report


def job(steps: int) -> float:
    """Tokens per second of the example."""
    with run_job(EXAMPLE / "job.yaml", f"steps={steps}", "params.evaluate_every=1000000", "observers=[]") as run_dir:
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return _rate([line["time"] for line in lines])


def launched(steps: int) -> float:
    """Tokens per second of the script."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        out = Path(folder, "ended.json")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(JOBS / "pretrained.py"), str(EXAMPLE), str(ROOT / "docs"), str(steps), str(out)]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
        )
        if done.returncode or not out.exists():
            raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return _rate(json.loads(out.read_text()))


def _rate(ended: Sequence[float]) -> float:
    return ROWS * WINDOW * (len(ended) - WARM_UP - 1) / (ended[-1] - ended[WARM_UP])
