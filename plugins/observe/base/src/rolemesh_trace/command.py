"""`rolemesh trace`: write a job's record as a file for Perfetto."""

from __future__ import annotations

import gc
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh.cli.arguments import JobName, RunsDir
from rolemesh.errors import RolemeshError, nearest
from rolemesh.runs.run import runs_folder
from rolemesh_console.text import amount
from rolemesh_durable.api.history import events
from rolemesh_durable.api.jobs import LivingRun
from rolemesh_facts import RunFacts
from rolemesh_facts.finding import readable_run
from rolemesh_facts.output import replaced
from rolemesh_facts.series import thinned
from rolemesh_facts.waiting import answered
from rolemesh_recorder.lines import RECORD_DIR, FlowFile
from rolemesh_recorder.reading import read_flow, recorded_ranks
from rolemesh_recorder.usage import read_usage
from rolemesh_trace.drawing import Counts, drawing
from rolemesh_trace.lanes import lanes, last_moment
from rolemesh_trace.shares import MOST

__all__ = ["chosen", "command", "duration", "write_trace"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NO_FLOW = FlowFile("", (), (), {}, {})


def command(
    job: JobName,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", show_default=False)],
    since: Annotated[
        str, typer.Option(help="Only the last part of the record, such as 30s, 10m or 2h.", metavar="TIME")
    ] = "",
    ranks: Annotated[
        list[str] | None, typer.Option(help="Only this role, or this rank (ROLE/N); may be repeated.", metavar="RANK")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Write a job's record as a file for https://ui.perfetto.dev: what each rank did, and what it waited for.

    The job may be running, ended or killed. JOB may also be the folder of a run, or a copy of one. The job does not
    notice.

    Exit code: 0, 2 if there is no such job, record or rank, or if the file cannot be written.

    Examples:

      rolemesh trace grpo -o grpo.perfetto-trace

      rolemesh trace grpo -o end.perfetto-trace --since 10m --ranks trainer --ranks rollout/0
    """
    run_dir = readable_run(job, runs_folder(runs_dir))
    with _no_search_for_cycles():
        seconds = duration(since)
        quiet = sys.stderr.isatty()  # which shows a bar
        count = answered(run_dir, lambda: write_trace(run_dir, output, seconds, ranks or ()), quiet=quiet)
    size = amount(output.stat().st_size)
    print(f"{output}: {count} ranks, {size}; open it in https://ui.perfetto.dev", file=sys.stderr)


def write_trace(run_dir: Path, output: Path, since_s: float | None, wanted: Sequence[str]) -> int:
    """Write the trace of a run's folder, and return the number of its ranks.

    `since_s`: only this many seconds before the end of the record. `wanted`: roles, or ranks as ROLE/N; all if empty.
    Raises `RolemeshError` if there is no record, no such rank, or if the file cannot be written.
    """
    ranks = chosen(recorded_ranks(run_dir), wanted, run_dir)
    since = 0 if since_s is None else max(0, last_moment(run_dir, ranks) - int(since_s * 1e6))
    flow = read_flow(run_dir)
    if flow is None:
        print("record/flow.json cannot be read: operators have numbers, and there are no arrows", file=sys.stderr)
    told = list(_events(run_dir, since / 1e6))
    found = lanes(run_dir, ranks, since, _watched)
    if not found:
        remedy = "the ranks may be too young, or died at once: look into the run's logs"
        raise RolemeshError("the record of the run is empty", where=str(run_dir / RECORD_DIR), remedy=remedy)
    facts = RunFacts(run_dir)
    info = facts.info()
    name = info.name if info is not None else run_dir.resolve().name
    nodes = sorted({lane.node for lane in found})
    loads = {node: [line for line in read_usage(run_dir, node) if line.t + line.d > since] for node in nodes}
    loads = {node: lines for node, lines in loads.items() if lines}
    _write(output, drawing(name, flow or _NO_FLOW, found, told, loads, _metrics(facts, since)))
    return len({lane.ref for lane in found})


def chosen(ranks: Sequence[RankRef], wanted: Sequence[str], run_dir: Path) -> list[RankRef]:
    """Return those of the recorded `ranks` that are `wanted`. Raises `RolemeshError` if one of them is not there."""
    if not ranks:
        raise RolemeshError(
            "the run has no record",
            where=str(run_dir),
            remedy="ranks record from the end of their setup on, unless the recorder's option `enabled` is false: "
            "`rolemesh events JOB` says how far the job came",
        )
    known = {each for ref in ranks for each in (ref.role, str(ref))}
    for each in wanted:
        if each not in known:
            raise RolemeshError(f"there is no record of {each!r}", where=str(run_dir), remedy=nearest(each, known))
    return [ref for ref in ranks if not wanted or ref.role in wanted or str(ref) in wanted]


def duration(text: str) -> float | None:
    """Return a time such as 30s, 10m or 2h in seconds; None for "". Raises `RolemeshError`."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise RolemeshError(f"{text!r} is no time", where="--since", remedy="write 30s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """A large record has a million objects without cycles. Python's search for cycles takes 40 % of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _events(run_dir: Path, since: float) -> Iterator[Event]:
    try:
        for page in events(LivingRun(run_dir), 0, journal=False):
            yield from (event for event in page if since <= event.time < 1e11)
    except (OSError, RolemeshError, ValueError, msgspec.MsgspecError) as error:
        print(f"the events of the run are left out: {error}", file=sys.stderr)


def _metrics(facts: RunFacts, since: int) -> dict[str, Counts]:
    """Return the metrics, with the times of their lines."""
    times = {line.step: int(line.time * 1e6) for line in facts.metrics() if since <= line.time * 1e6 < 1e17}
    found: dict[str, Counts] = {}
    for name in facts.metric_names():
        points = zip(*thinned(facts.points(name), MOST), strict=True)
        known = sorted((times[step], value) for step, value in points if step in times and math.isfinite(value))
        if known:
            found[name] = known
    return found


def _watched(ranks: Iterable[RankRef]) -> Iterable[RankRef]:
    """Show the progress on a terminal."""
    from rich.console import Console
    from rich.progress import track

    return track(list(ranks), "reading", console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _write(output: Path, content: Iterable[bytes]) -> None:
    """Write a file that a reader sees as a whole or not at all."""
    try:
        with replaced(output) as partial, partial.open("wb") as file:
            file.writelines(content)
    except OSError as error:
        what = f"the file cannot be written: {error.strerror or error}"
        raise RolemeshError(what, where=str(output), remedy="choose another place with -o") from error
