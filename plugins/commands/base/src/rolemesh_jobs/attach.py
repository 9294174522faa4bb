"""`rolemesh attach`: watch a running job."""

from __future__ import annotations

import typer

from rolemesh.api.failures import job_failed
from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import RolemeshError
from rolemesh.job_file.model import Use
from rolemesh.plugins.manager import JobPlugins
from rolemesh.runs.run import METRICS_FILE
from rolemesh_durable.api.history import follow, newest_event, newest_step
from rolemesh_durable.api.jobs import Run
from rolemesh_jobs.classes import Resolver
from rolemesh_jobs.runs import find
from rolemesh_runtime.lock import is_held

__all__ = ["command", "watchers"]

LATEST = 500
"""Maximum number of earlier events and steps that are shown."""


def command(job: JobName, runs_dir: RunsDir = None) -> None:
    """Show the live view of a job again. For a job that has ended, show its summary.

    The view begins with at most the last 500 events and steps. 'rolemesh events' shows all events, and metrics.jsonl in
    the run's folder has all metrics. Ctrl-C ends the view, not the job.

    Exit code: that of the job once it has ended (0 done, 1 failed, 130 interrupted), 0 after Ctrl-C, 2 if there is no
    such job or its master does not answer.

    Examples:

      rolemesh attach grpo
    """
    run = find(job, runs_dir)
    info = run.info()
    if info is None:
        raise RolemeshError(
            f"{run.name} has not begun", where=str(run.path), remedy="try again when 'rolemesh status' shows it running"
        )
    observers = watchers(run)
    observers.broadcast("job_started", run=info)
    if max(newest_event(run), newest_step(run)) > LATEST:
        where = run.path / METRICS_FILE
        print_text(
            f"only the last {LATEST} events and steps; 'rolemesh events {run.name}' and {where} have all", err=True
        )
    try:
        result = follow(run.path, observers, owner=False, latest=LATEST, alive=lambda: is_held(run.path))
    except KeyboardInterrupt:
        print_text(
            f"\n{run.name} goes on: 'rolemesh attach {run.name}' shows it again, 'rolemesh stop {run.name}' ends it"
        )
        return
    if result is None:
        raise RolemeshError(
            f"the master of {run.name} does not answer, and it left no result",
            where=str(run.path),
            remedy=f"'rolemesh events {run.name}' shows what it journalled last",
        )
    if result["status"] == "failed":
        raise job_failed(result)
    raise typer.Exit(int(result.get("exit_code", 0)))


def watchers(run: Run) -> JobPlugins:
    """Return the observers of the job that run beside the user; the console if the job file has none.

    Of a run that another user could have written it is only the console: an observer acts in the name of this user.
    """
    try:
        run.require_own("its observers do not watch, only the console does", writers=0o002)
    except RolemeshError as error:
        print_text(f"warning: {error}", err=True)
        uses = []
    else:
        uses = [Use.model_validate(use) for use in run.job_value("observers", [])]
    info, plugins = run.info(), JobPlugins()
    resolver = Resolver(run, info.base if info is not None else "")
    for index, use in enumerate(uses):
        try:
            record, cls, options = resolver.find("observers", use, f"observers[{index}]")
        except RolemeshError as error:
            print_text(f"warning: {error}\n  it does not watch; the others do", err=True)
            continue
        if cls.side == "driver":
            plugins.create(f"{record.name}#{index}", record, cls, options)
    if not plugins.names:
        plugins.create("console", *resolver.find("observers", Use(use="console"), "observers"))
    return plugins
