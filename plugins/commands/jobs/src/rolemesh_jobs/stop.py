"""`rolemesh stop`: end a job."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.errors import EXIT_FAILED
from rolemesh_durable.api.history import await_end
from rolemesh_durable.api.jobs import ControlClient, MasterGoneError, Run, is_held
from rolemesh_jobs.runs import find, reason

__all__ = ["command"]

AGAIN_S = 0.2


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
    run = find(job, runs_dir)
    if (result := run.result()) is not None:
        typer.echo(f"{run.name} has ended already: {result.get('status')}")
        return
    try:
        _ask(run, reason(f"stop{' --drain' * drain}"), drain=drain)
    except MasterGoneError as error:
        if (result := run.result()) is None:
            remedy = "its agents end by themselves when their lease runs out; 'rolemesh status' shows what is known"
            raise MasterGoneError(error.what, where=error.where, remedy=remedy) from error
    if not wait:
        typer.echo(f"{run.name} is stopping; 'rolemesh status {run.name}' shows when it has ended")
        return
    result = await_end(run.path, warned=partial(_say, run), alive=lambda: is_held(run.path))
    if result is None:
        typer.echo(f"{run.name}: its master fell silent before it left a result", err=True)
        raise typer.Exit(EXIT_FAILED)
    of = f" of {result['steps']}" if result.get("steps") else ""
    typer.echo(f"{run.name} {result.get('status')} · {result.get('committed_steps')}{of} steps")


def _ask(run: Run, why: str, *, drain: bool) -> None:
    """Send the request and return when the master has it. A master that does not answer may be about to restart. A
    drain request is repeated until it is journalled, so the death of a master does not lose it."""
    told = False
    with ControlClient(run.path) as client:
        while True:
            try:
                if not drain:
                    client.stop(why)
                    return
                if client.finish(why).status.finishing or run.result() is not None:
                    return
            except MasterGoneError:
                if run.result() is not None or not is_held(run.path):
                    raise
            else:
                time.sleep(AGAIN_S)
                continue
            if not told:
                _say(run, "its master does not answer, but the job lives: the next one will be asked")
                told = True
            time.sleep(AGAIN_S)


def _say(run: Run, text: str) -> None:
    typer.echo(f"{run.name}: {text}", err=True)
