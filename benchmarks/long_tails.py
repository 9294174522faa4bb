"""Conversations with long tails: a trainer that takes those that end first, against one that waits for all of a step.

The same conversations are held once more while a rank dies each minute. The time of the engine and of the trainer is
modelled (`jobs/long_tails.py`), since four engines on two cores would measure the cores.
"""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.disturbed import Disturbed, disturbed
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError, run_job, times
from rolemesh_durable.control.client import RefusedError

JOB = JOBS / "long_tails.yaml"
LAG = 8
KILL_S = 60.0
VICTIMS = ("rollout/1", "agent/3", "environment/0", "rollout/2", "agent/0", "environment/1")
SYNCHRONOUS = ("params.lag=0", "roles.rollout.options.kwargs.drain=true")
ASYNCHRONOUS = (
    f"params.lag={LAG}",
    f"edges.credits={LAG}",
    "roles.rollout.options.kwargs.drain=false",
)  # fmt: skip


def measure(quick: bool) -> Report:
    """At least 2.8 times the turns a second; with a kill a minute at least 0.9 of them."""
    report = Report("long_tails", "conversations whose lengths are log-normal, sigma 1.5; 4 rollout ranks", quick)
    rounds, warm, steps = (1, 1, 2) if quick else (3, LAG, 16)
    found: dict[str, list[dict[str, float]]] = {"synchronous": [], "asynchronous": [], "with kills": []}
    kills = []
    for number in range(rounds):
        seed = f"seed={number}"
        found["synchronous"].append(undisturbed(1, 1 + steps // 2, 0, seed, *SYNCHRONOUS))
        found["asynchronous"].append(undisturbed(warm, steps, LAG, seed, *ASYNCHRONOUS))
        killed, count = with_kills(warm, steps, LAG, seed, *ASYNCHRONOUS)
        found["with kills"].append(killed)
        kills.append(float(count))
    for name, each in found.items():
        report.row(f"{name}: turns", "turns/s", [one["turns"] for one in each])
        report.row(f"{name}: conversations", "rows/s", [one["rows"] for one in each])
        report.row(f"{name}: age of the weights of a conversation's last turn", "steps", [one["lag"] for one in each])
    report.row("kills", "kills", kills)
    waits, takes, killed = ([one["turns"] for one in each] for each in found.values())
    report.claim("turns/s: asynchronous / synchronous", ratios(takes, waits), at_least=2.8)
    report.claim("turns/s of asynchronous: with a kill a minute / undisturbed", ratios(killed, takes), at_least=0.9)
    report.settings = {
        "rollout ranks": 4, "conversations of a step": 16, "lag": f"AtMost({LAG})", "seconds between kills": KILL_S,
        "seconds of a token": 0.004, "seconds of a trainer's step": 0.5, "tools": "0.05 to 5 s", "longest": "40 turns",
    }  # fmt: skip
    report.notes.append("the engine's and the trainer's time is modelled: their ranks sleep; all else is real")
    return report


def undisturbed(warm: int, steps: int, after: int, *overrides: str) -> dict[str, float]:
    """Run a job of `warm` + `steps` + `after` steps, and return what `steps` of them gave a second."""
    with run_job(JOB, f"steps={warm + steps + after + 1}", *overrides) as run_dir:
        return measured(run_dir, warm, steps)


def with_kills(warm: int, steps: int, after: int, *overrides: str) -> tuple[dict[str, float], int]:
    """As `undisturbed`, with a SIGKILL every `KILL_S`; also return the number of kills."""
    with disturbed(JOB, f"steps={warm + steps + after + 1}", *overrides) as running:
        over, killed = threading.Event(), list[str]()
        thread = threading.Thread(target=_kill, args=(running, over, killed))
        thread.start()
        try:
            running.result(1800.0)
        finally:
            over.set()
            thread.join()
        return measured(running.run.path, warm, steps), len(killed)


def _kill(running: Disturbed, over: threading.Event, killed: list[str]) -> None:
    for victim in itertools.cycle(VICTIMS):
        if over.wait(KILL_S):
            return
        try:
            running.inject("kill", victim)
        except RefusedError:  # the job is ending
            return
        killed.append(victim)


def measured(run_dir: Path, warm: int, steps: int) -> dict[str, float]:
    """Return turns and rows a second between the trainer's steps `warm` and `warm` + `steps`, and the mean lag."""
    noted: dict[str, Any] = times(run_dir)["trainer-0"]
    span = slice(warm, warm + steps)
    seconds = noted["began"][warm + steps] - noted["began"][warm]
    failed = sum(json.loads(line).get("conversations_failed", 0) for line in _lines(run_dir))
    if failed:
        raise BenchmarkError(f"{failed:g} conversations have failed")
    found = {name: sum(noted[name][span]) / seconds for name in ("turns", "rows")}
    return {**found, "lag": mean(noted["lags"][span])}


def _lines(run_dir: Path) -> list[str]:
    return (run_dir / "metrics.jsonl").read_text().splitlines()
