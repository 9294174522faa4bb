"""`rolemesh stop`: end a job."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import EXIT_FAILED
from rolemesh.runs.run import runs_folder
from rolemesh_durable.api.jobs import ANSWER_S, ControlClient, LivingRun, MasterGoneError, Request
from rolemesh_jobs.asking import request, say
from rolemesh_jobs.runs import find, reason
from rolemesh_runtime.lock import is_held
from rolemesh_runtime.waiting import waiting_jobs

__all__ = ["command"]

LOOK_S = 0.25
PATIENCE_S = 10.0
"""Seconds of silence after which the verb gives up a master of which no process lives."""


def command(
    job: JobName,
    drain: Annotated[
        bool, typer.Option("--drain", help="End in good order: all ranks come to one step, with a last snapshot.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when the job has ended, or at once.")] = True,
    runs_dir: RunsDir = None,
) -> None:
    """End a job: its ranks finish the operator that runs and tear down, then all processes of the job are removed.

    After half of the job file's stop_grace_s, an operator that still runs gets SIGTERM, as do the processes that its
    rank started. The rank then leaves the operator and runs teardown, unless the workload has a handler of its own.
    After stop_grace_s the rank is killed.

    With --drain the job ends in good order: the ranks continue to the newest step that any of them may run, some
    seconds ahead, and end after it. The job's status is then done, and it can be resumed.

    Exit code: 0 when the job has ended, even if it had ended before (with --no-wait: when the request is accepted); 2
    if there is no such job or its master does not answer; 1 if the master was lost meanwhile.

    Examples:

      rolemesh stop grpo

      rolemesh stop grpo --no-wait

      rolemesh stop grpo --drain
    """
    for waiting in waiting_jobs(runs_folder(runs_dir)):
        if waiting.job == job:
            raise MasterGoneError(f"{job} has not begun: it {waiting}", remedy=waiting.ending)
    run = find(job, runs_dir)
    if (result := run.result()) is not None:
        print_text(f"{run.name} has ended already: {result.get('status')}")
        return
    try:
        request(run, _Stop(reason(f"stop{' --drain' * drain}"), drain=drain), wait=False)
    except MasterGoneError as error:
        remedy = "its agents end by themselves when their lease runs out; 'rolemesh status' shows what is known"
        raise MasterGoneError(error.what, where=error.where, remedy=remedy) from error
    if not wait:
        print_text(f"{run.name} is stopping; 'rolemesh status {run.name}' shows when it has ended")
        return
    result = _await_end(run)
    if result is None:
        print_text(f"{run.name}: its master fell silent before it left a result", err=True)
        raise typer.Exit(EXIT_FAILED)
    of = f" of {result['steps']}" if result.get("steps") else ""
    print_text(f"{run.name} {result.get('status')} · {result.get('committed_steps')}{of} steps")


def _await_end(run: LivingRun) -> dict[str, Any] | None:
    """Return the job's result; None if its master fell silent. Prints each warning of the job once."""
    told: set[str] = set()
    answered = time.monotonic()
    with ControlClient(run.path, ANSWER_S) as client:
        while (result := run.result()) is None:
            try:
                warnings = client.status().warnings
                answered = time.monotonic()
            except MasterGoneError:
                warnings = ()
                if time.monotonic() > answered + PATIENCE_S and not is_held(run.path):
                    return run.result()
            for text in warnings:
                if (known := re.sub(r"[0-9.]+", "", text)) not in told:  # "since 12 s" grows
                    told.add(known)
                    say(run, text)
            time.sleep(LOOK_S)
    return result


class _Stop(Request):
    """The request of the job's end. With `drain` the job ends in good order, and the master journals the request."""

    def __init__(self, reason: str, *, drain: bool) -> None:
        self._reason, self._drain = reason, drain

    def send(self, client: ControlClient) -> Event | None:
        update = client.finish(self._reason) if self._drain else client.stop(self._reason)
        return Event(0, 0, 0.0, "asked", {}) if update.status.finishing or not self._drain else None

    def is_accepted(self, event: Event) -> bool:
        return event.kind == "job_finishing"
