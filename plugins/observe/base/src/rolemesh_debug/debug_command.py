"""`rolemesh debug`: the stacks and the memory of a rank, or a profile of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from rolemesh.api.observer import RankStatus
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh.cli.output import print_json, print_text
from rolemesh.runs.run import runs_folder
from rolemesh_debug.living_ranks import find_rank, process_of
from rolemesh_debug.process_facts import ProcessFacts
from rolemesh_debug.profiles import profiled
from rolemesh_debug.requests import MOST_STEPS
from rolemesh_durable.api.jobs import LivingRun, MasterGoneError, find_run, take_stacks

__all__ = ["command"]


def command(
    job: JobName,
    rank: Annotated[str, typer.Argument(metavar="ROLE/RANK", help="The rank.", show_default=False)],
    profile: Annotated[
        int, typer.Option("--profile", min=0, max=MOST_STEPS, help="Number of steps to profile; 0: show the stacks.")
    ] = 0,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Show the position of a rank, the stacks of its threads, and its memory and open files; or profile it.

    The stacks are those of py-spy, which pauses the rank for some milliseconds. The rank must be on this machine.
    With --profile, the rank instead runs torch.profiler around its next steps, and writes a Chrome trace into the
    run's folder. The command waits for the file and names it; Ctrl-C ends only the wait. The job file must list the
    extension `debug`, and the rank must have imported torch.

    Exit code: 0; 1 if the job's master is gone, or the rank has not written the profile; 2 if there is no such job or
    rank, or it has no process here.

    Examples:

      rolemesh debug grpo trainer/1

      rolemesh debug grpo trainer/1 --json

      rolemesh debug grpo trainer/1 --profile 3
    """
    run = LivingRun(find_run(job, runs_folder(runs_dir)).path)
    status = run.status()
    if status is None:
        result = run.result()
        what = f"it has ended: {result.get('status')}" if result else "its master does not answer"
        raise MasterGoneError(what, where=str(run.path), remedy="rolemesh events shows what it journalled last")
    found = find_rank(status, rank)
    if profile:
        file = profiled(run, status, found.ref, profile)
        if as_json:
            print_json({"job": run.name, "rank": str(found.ref), "profile": str(file)})
        else:
            print_text(f"{file}; open it in https://ui.perfetto.dev")
        return
    facts = process_of(status, found)
    stacks = take_stacks(found.pid)
    if as_json:
        told = {"memory": msgspec.to_builtins(facts), "stacks": stacks}
        print_json({"job": run.name, **msgspec.to_builtins(found), **told})
    else:
        print_text("\n".join([*_lines(found, facts), "", stacks]))


def _lines(rank: RankStatus, facts: ProcessFacts) -> list[str]:
    at = " ".join(filter(None, (rank.phase, rank.doing)))
    opened: dict[str, Any] = facts.open_files or {}
    return [
        f"{rank.ref} on {rank.node}, pid {rank.pid}: {rank.state}, step {rank.step}{', ' + at if at else ''}",
        f"memory: {facts.rss:g} MB resident, {facts.peak:g} MB at most; {facts.private:g} private, {facts.files:g} of "
        f"files, {facts.shared:g} shared" + (f"; {facts.pss:g} in proportion" if facts.pss is not None else ""),
        f"{facts.threads} threads; "
        + (f"open: {', '.join(f'{n} {kind}' for kind, n in opened.items())}" if opened else "open files unknown"),
    ]
