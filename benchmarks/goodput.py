"""The same seeded failures in a job with the whole failover ladder, and with only its last level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import Report, ratios
from benchmarks.running import JOBS, BenchmarkError, run_job
from rolemesh_durable.control.living import LivingRun

JOB = JOBS / "goodput.yaml"
NODES = "4x(cpu=1)"
TARGETS = "rank,agent,master,node"
TRIES = "options: {max_attempts: 100}"
LADDERS = {
    "whole": f"failover=[{{use: process, {TRIES}}}, {{use: node, {TRIES}}}, {{use: job, {TRIES}}}]",
    "job": f"failover=[{{use: job, {TRIES}}}]",
}
TITLES = {"whole": "process, node, job", "job": "only job"}
OWN = ("start", "stop")
"""Causes of lost time that are no failures."""


def measure(quick: bool) -> Report:
    """With the whole ladder, less is lost to the same failures."""
    report = Report("goodput", "the same seeded failures with the whole ladder, and with only its last level", quick)
    seeds, kills, steps = ((1,), 2, 60) if quick else ((1, 2, 3), 6, 150)
    undisturbed = run(steps, LADDERS["whole"])
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in LADDERS}
    for number, seed in enumerate(seeds):
        for name in list(LADDERS)[:: 1 if number % 2 == 0 else -1]:
            done = run(steps, LADDERS[name], "--chaos", f"kills={kills},seed={seed},targets={TARGETS}")
            if done["state_sha256"] != undisturbed["state_sha256"]:
                raise BenchmarkError(f"seed {seed}, {TITLES[name]}: the job ended with another state than undisturbed")
            found[name].append(done)
    report.row("undisturbed: wall time", "s", [undisturbed["wall_s"]])
    for name, title in TITLES.items():
        results = found[name]
        report.row(f"{title}: wall time", "s", [done["wall_s"] for done in results])
        report.row(f"{title}: goodput, start and stop included", "of wall", [d["goodput"]["share"] for d in results])
        report.row(f"{title}: goodput between start and stop", "of wall", [between(done) for done in results])
        report.row(f"{title}: lost to failures", "s", [to_failures(done) for done in results])
        for cause in sorted({cause for done in results for cause in done["goodput"]["lost_s"]}):
            lost = [seconds for done in results if (seconds := done["goodput"]["lost_s"].get(cause))]
            report.row(f"{title}: lost to {cause}", "s", lost)
        report.row(f"{title}: recoveries", "", [float(len(done["recoveries"])) for done in results])
        ranks = [float(sum(len(one["restarted"]) for one in done["recoveries"])) for done in results]
        report.row(f"{title}: restarted in all", "ranks", ranks)
    both = [[between(done) for done in found[name]] for name in LADDERS]
    report.claim("goodput between start and stop: whole ladder / only job", ratios(*both), at_least=1)
    both = [[to_failures(done) for done in found[name]] for name in reversed(LADDERS)]
    report.claim("lost to failures: only job / whole ladder", ratios(*both), at_least=1)
    report.settings = {
        "steps": steps, "seconds of a step": 0.1, "steps between snapshots on disk": 25, "seeds": list(seeds),
        "failures in a run": kills, "targets": TARGETS, "nodes": f"{NODES}, emulated",
    }  # fmt: skip
    report.notes += [f"seed {seed}: {injected(found, number)}" for number, seed in enumerate(seeds)]
    report.notes.append("every run ended with the undisturbed run's state; a cause's row has the runs in which it came")
    return report


def run(steps: int, *arguments: str) -> dict[str, Any]:
    """The job's ``result.json``, and under ``injected`` the failures that the rehearsal has let happen."""
    ladder, *chaos = arguments
    backend = ("--backend", "local", "--nodes", NODES, *chaos)
    with run_job(JOB, f"steps={steps}", ladder, backend=backend) as run_dir:
        result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
        result["injected"] = _injected(run_dir)
        return result


def to_failures(result: dict[str, Any]) -> float:
    """Seconds lost to failures."""
    return float(sum(seconds for cause, seconds in result["goodput"]["lost_s"].items() if cause not in OWN))


def between(result: dict[str, Any]) -> float:
    """Share of the time between start and stop that went into steps that were kept."""
    productive = float(result["goodput"]["productive_s"])
    return productive / (productive + to_failures(result))


def injected(found: dict[str, list[dict[str, Any]]], number: int) -> str:
    """Return the injected failures of a seed, for each ladder."""
    return "; ".join(f"{TITLES[name]}: {results[number]['injected']}" for name, results in found.items())


def _injected(run_dir: Path) -> str:
    with LivingRun(run_dir).store() as store:
        return ", ".join(f"{e.data['kind']} {e.data['target']}" for e in store.events() if e.kind == "injected")
