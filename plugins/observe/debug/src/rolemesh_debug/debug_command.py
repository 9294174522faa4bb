"""`rolemesh debug`: the stacks and the memory of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from rolemesh.api.observer import JobStatus, RankStatus
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh.cli.output import print_json
from rolemesh.errors import EXIT_NOT_STARTED, RolemeshError, nearest
from rolemesh.runs.run import runs_folder
from rolemesh_debug.process_facts import ProcessFacts, look
from rolemesh_durable.api.jobs import LivingRun, MasterGoneError, find_run, take_stacks

__all__ = ["command"]


class RankGoneError(RolemeshError):
    """The rank has no process that can be looked at from here."""

    exit_code = EXIT_NOT_STARTED


def command(
    job: JobName,
    rank: Annotated[str, typer.Argument(metavar="ROLE/RANK", help="The rank.", show_default=False)],
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Show the position of a rank, the stacks of its threads, and its memory and open files.

    The stacks are those of py-spy, which pauses the rank for some milliseconds. The rank must be on this machine.

    Exit code: 0; 1 if the job's master is gone; 2 if there is no such job or rank, or it has no process here.

    Examples:

      rolemesh debug grpo trainer/1

      rolemesh debug grpo trainer/1 --json
    """
    run = LivingRun(find_run(job, runs_folder(runs_dir)).path)
    status = run.status()
    if status is None:
        result = run.result()
        what = f"it has ended: {result.get('status')}" if result else "its master does not answer"
        raise MasterGoneError(what, where=str(run.path), remedy="rolemesh events shows what it journalled last")
    found = _rank(status, rank)
    facts = look(found.pid) if found.pid > 0 else None
    if facts is None or not _is_ours(found.pid, f"rolemesh: {status.name} {found.ref}"):
        raise RankGoneError(
            f"{found.ref} has no process on this machine: it is {found.state}, on node {found.node or '?'}",
            remedy="run this command on that node, or wait until the rank has started",
        )
    stacks = take_stacks(found.pid)
    if as_json:
        told = {"memory": msgspec.to_builtins(facts), "stacks": stacks}
        print_json({"job": run.name, **msgspec.to_builtins(found), **told})
    else:
        typer.echo("\n".join([*_lines(found, facts), "", stacks]))


def _rank(status: JobStatus, asked: str) -> RankStatus:
    known = {str(each.ref): each for each in status.ranks}
    found = known.get(asked) or known.get(f"{asked}/0" if "/" not in asked else "")
    if found is None:
        raise RankGoneError(f"{status.name} has no rank {asked!r}", remedy=nearest(asked, list(known)))
    return found


def _is_ours(pid: int, title: str) -> bool:
    """Return whether the process has this title, or its beginning: pids of another machine may be in use here."""
    try:
        shown = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return False
    return len(shown) > len("rolemesh: ") and title.startswith(shown)


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
