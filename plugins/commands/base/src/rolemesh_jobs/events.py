"""`rolemesh events`: show a job's journal."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rolemesh.api.observer import Event
from rolemesh.cli.arguments import JobName, JsonFlag, RunsDir
from rolemesh_console.sentences import described
from rolemesh_durable.api.history import events, newest_event
from rolemesh_jobs.runs import find

if TYPE_CHECKING:
    from rich.text import Text

    from rolemesh_durable.api.jobs import LivingRun

__all__ = ["command", "line"]

POLL_S = 0.25


def command(
    job: JobName,
    as_json: JsonFlag = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the job ends.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="Only events of this kind; may be repeated.", metavar="KIND"),
    ] = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Only events with numbers above N.", metavar="N")
    ] = None,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=0, help="Only the last N events.", metavar="N")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Show every transition of a job: number, time, kind and data.

    The events come from events.jsonl in the run's folder. If it lacks the job's end, the newest ones come from the
    journal (the database that `state` in the job file names). They stay available after the job. With --json each line
    is one event. --after and --last count all events, including those that --kind hides.

    Exit code: 0, 2 if there is no such job, 1 if its journal cannot be read.

    Examples:

      rolemesh events grpo

      rolemesh events grpo -n 20 -f

      rolemesh events grpo -f --kind failure --kind recovered
    """
    run = find(job, runs_dir)
    seen = max(after or 0, 0 if last is None else newest_event(run) - last)
    first, ended = True, _has_end(run, seen)
    while True:
        # Asked before reading: what was journalled until the end is read after it.
        over = not follow or not run.alive()
        for journal in (False, True):
            # A copied run whose events.jsonl has the job's end needs no journal.
            if journal and (ended or not (first or over)):
                continue
            for page in events(run, seen, journal=journal):
                for event in page:
                    if not kind or event.kind in kind:
                        _show(event, as_json)
                seen = page[-1].seq
                ended = ended or any(event.kind == "job_ended" for event in page)
        if over or ended:
            return
        first = False
        time.sleep(POLL_S)


def _has_end(run: LivingRun, number: int) -> bool:
    """Return whether event `number` is the job's end, and events.jsonl has it."""
    found = events(run, number - 1, number, journal=False) if number else ()
    return any(event.kind == "job_ended" for page in found for event in page)


def line(event: Event) -> Text:
    """Return an event as one line, as a sentence if there is one for its kind. A traceback in its data follows,
    indented."""
    from rich.text import Text

    known = 0 <= event.time < 1e11  # else a damaged line
    at = f"{datetime.fromtimestamp(event.time, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z" if known else "?"
    text = Text.assemble((f"{event.seq:>5} ", "dim"), (f"{at}  ", "dim"), (f"{event.kind:<17}", _style(event.kind)))
    said = described(event)
    if said is not None:
        first, *rest = [*said.removeprefix(f"{event.kind}: ").splitlines(), *_traceback(event)]
        return text.append(f" {first}").append("".join(f"\n        {part}" for part in rest))
    below = ""
    for key, value in event.data.items():
        if isinstance(value, str) and "\n" in value:
            below += "\n" + "\n".join(f"        {part}" for part in value.rstrip().splitlines())
        elif value not in ("", None):
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            text.append(" ").append(f"{key}=", style="dim").append(shown)
    return text.append(below)


def _traceback(event: Event) -> list[str]:
    failure = event.data.get("failure") or {}
    return str(failure.get("traceback", "")).rstrip().splitlines()


def _show(event: Event, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(event))
        return
    from rolemesh_console.terminal import Terminal

    Terminal(highlight=False).print(line(event), soft_wrap=True)


def _style(kind: str) -> str:
    if kind in ("failure", "agent_lost", "hang", "ladder_exhausted", "recovery_failed"):
        return "bold red"
    return "bold" if kind.startswith("job_") else ""
