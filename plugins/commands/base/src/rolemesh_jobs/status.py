"""`rolemesh status`: show the state of jobs, from their folders and their masters."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JsonFlag, RunsDir
from rolemesh.cli.output import print_text
from rolemesh.runs.jsonl import UNDECODABLE, open_regular, read_metrics
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, runs_folder
from rolemesh_console.kept import kept_lines
from rolemesh_jobs.picture import job_status, job_statuses

__all__ = ["command"]

LAST_BYTES = 65_536
"""Bytes at the end of ``metrics.jsonl`` and ``events.jsonl`` from which the speed of a job is taken."""
NODE = 12
"""Characters of a node's name in the table, of the 56 that Ray gives it; `rolemesh drain` takes the beginning."""


def command(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Name of one job; without it, all runs.", show_default=False)
    ] = None,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Show the state of jobs: all of them in a table, or one with its master, agents and ranks.

    A job is 'waiting' while others hold the resources that it needs. The message names both. While
    the job's master answers, the state is 'new', 'starting', 'running' or 'stopping'; it is 'recovering' while a
    new master waits for the journal. A job that has ended is 'done', 'failed' or 'interrupted'. 'silent': the master
    does not answer, but processes of the job are alive. 'dead': none are alive, and there is no result. 'unreadable': a
    file of the run is damaged or belongs to another user.

    Exit code: 0, or 2 if there is no such job.

    Examples:

      rolemesh status

      rolemesh status grpo

      rolemesh status grpo --json | jq '.ranks[] | select(.state != "running")'
    """
    pictures = [job_status(job, runs_dir)] if job is not None else job_statuses(runs_dir)
    if as_json:
        print_text(json.dumps(pictures if job is None else pictures[0], indent=2))
    elif job is not None:
        _print_one(pictures[0])
    elif pictures:
        _print_all(pictures)
    else:
        print_text(f"no runs in {runs_folder(runs_dir)}/")


def _print_all(pictures: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rolemesh_console.terminal import Terminal
    from rolemesh_console.text import duration, state_style

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading, justify in (("job", "left"), ("state", "left"), ("steps", "right"), ("time", "right"), ("", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for p in pictures:
        wall = duration(p["wall_s"]) if p["wall_s"] is not None else ""
        state = Text(str(p["state"]), style=state_style(str(p["state"])))
        message = Text("; ".join([*p["warnings"], str(p["message"] or "").partition("\n")[0]]).strip("; "), style="dim")
        table.add_row(Text(p["name"], style="bold"), state, _steps(p), wall, message)
    Terminal(highlight=False).print(table)


def _print_one(p: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from rolemesh.api.observer import RankStatus
    from rolemesh_console.terminal import Terminal
    from rolemesh_console.text import activity, duration, state_style

    console = Terminal(highlight=False)
    head = Text.assemble((p["name"], "bold"), "  ", (str(p["state"]), state_style(str(p["state"]))))
    head.append(f"  {_steps(p)} steps" + (f"  {duration(p['wall_s'])}" if p["wall_s"] is not None else ""))
    head.append(_speed(p) if p["state"] == "running" else "")
    head.append(f"  {p['run_dir']}", style="dim")
    console.print(head, soft_wrap=True)
    if p["message"]:
        console.print(Text(f"  {p['message']}", style="yellow"), soft_wrap=True)
    for warning in p["warnings"]:
        console.print(Text(f"  warning: {warning}", style="yellow"), soft_wrap=True)
    for heading, text in kept_lines(p, p["run_dir"]):
        console.print(Text.assemble((f"  {heading}  ", "dim"), text), soft_wrap=True)
    for role, has in p["resources"].items():
        told = ", ".join(f"{name} {amount:g}" for name, amount in has.items() if amount)
        console.print(Text(f"  each rank of {role} has been given {told}", style="dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("who", "node", "pid", "state", "step", "doing"):
        table.add_column(heading, justify="right" if heading in ("pid", "step") else "left", overflow="fold")
    if master := p["master"]:
        state = p["state"] if p["state"] == "dead" else "up"
        style = state_style(state)
        table.add_row("master", (master["node"] or "")[:NODE], str(master["pid"]), Text(state, style), "", p["backend"])
    for agent in p["agents"]:
        state = Text(agent["state"], style=state_style(agent["state"]))
        table.add_row(Text(agent["agent"]), Text(agent["node"][:NODE]), str(agent["pid"] or ""), state, "", "")
    for rank in p["ranks"]:
        name, state = f"{rank['role']}/{rank['rank']}", Text(rank["state"], style=state_style(rank["state"]))
        doing = activity(msgspec.convert(rank, RankStatus)) if rank["state"] == "running" else Text()
        step = str(rank["step"]) if rank["step"] >= 0 else ""
        table.add_row(Text(name), Text(rank["node"][:NODE]), str(rank["pid"] or ""), state, step, doing)
    if table.row_count:
        console.print(table)


def _steps(p: dict[str, Any]) -> str:
    done, total = p["committed_steps"], p["steps"]
    return f"{'?' if done is None else done}{'' if total is None else f'/{total}'}"


def _speed(p: dict[str, Any]) -> str:
    """Return the seconds per step, and those until the last one, from the latest lines of metrics; "" for unknown."""
    from rolemesh_console.statistics import Statistics
    from rolemesh_console.text import clock, duration

    folder, stats = Path(p["run_dir"]), Statistics()
    with suppress(OSError), open_regular(folder / EVENTS_FILE) as events:
        _seek_latest(events)
        for raw in events:
            with suppress(*UNDECODABLE):
                if b'"resized"' in raw:  # after it, steps take another time
                    stats.event(msgspec.json.decode(raw, type=Event))
    try:
        with open_regular(folder / METRICS_FILE) as metrics:
            start = _seek_latest(metrics)
        stats.steps(read_metrics(folder / METRICS_FILE, start=start))
    except OSError:
        return ""
    step = stats.seconds_per_step()
    left = stats.seconds_left(p["steps"], time.time()) if p["steps"] is not None else None
    return (f"  {duration(step)}/step" if step is not None else "") + (
        f"  {clock(left)} left" if left is not None else ""
    )


def _seek_latest(file: BinaryIO) -> int:
    """Go to the first line of the last `LAST_BYTES`; return the byte at which it begins."""
    start = max(0, file.seek(0, os.SEEK_END) - LAST_BYTES)
    file.seek(start)
    return start + (len(file.readline()) if start else 0)
