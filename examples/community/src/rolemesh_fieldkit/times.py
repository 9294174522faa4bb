"""Computation times of a run's roles, from its metrics."""

from __future__ import annotations

import typer
from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.runs.jsonl import read_metrics
from rolemesh.runs.run import METRICS_FILE, runs_folder
from rolemesh_durable.api.jobs import find_run


def slowest(job: JobName, runs_dir: RunsDir = None) -> None:
    """Name the roles of a run that compute the longest, in seconds per step, the slowest first."""
    run = find_run(job, runs_folder(runs_dir))
    seconds: dict[str, float] = {}
    steps = 0
    for line in read_metrics(run.path / METRICS_FILE):
        steps += line.steps
        for role, times in line.roles.items():
            seconds[role] = seconds.get(role, 0.0) + times.computing_s
    for role, total in sorted(seconds.items(), key=lambda item: -item[1]):
        typer.echo(f"{total / steps:.6f} s  {role}")
