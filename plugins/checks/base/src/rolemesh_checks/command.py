"""`rolemesh check`: measure the nodes of a cluster before a job uses them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.console import Console
from rich.table import Table

from rolemesh.api.command import Command
from rolemesh.cli.arguments import JsonFlag, RunsDir
from rolemesh.cli.output import print_json
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, JobFailedError, JobFileError, nearest
from rolemesh.job.engine import RunHandle
from rolemesh.job.run import JobRun, engine_named, options_for
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs.run import runs_folder
from rolemesh_checks.probe import MOST_NODES, NodeResult, found, probing

__all__ = ["CheckVerb", "check"]

USUAL = ("memory", "matmul", "disk", "shm", "network")


class CheckVerb(Command):
    """`rolemesh check`."""

    help: ClassVar[str] = "Measure the nodes of a cluster: memory, processors or GPUs, disk, shared memory, network."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return check


def check(
    checks: Annotated[
        list[str] | None, typer.Argument(metavar="[CHECK]...", help=f"The checks; default: {' '.join(USUAL)}.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Backend: local or ray.", show_default="ray with --address, else local")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster to measure, or auto.")] = None,
    nodes: Annotated[str | None, typer.Option(help="Emulate these nodes on this machine: '3x(cpu=1)'.")] = None,
    gpus: Annotated[float, typer.Option(help="Number of GPUs to use on each node.", min=0)] = 0.0,
    slower: Annotated[
        float | None,
        typer.Option(
            help="A node fails if it is this many times slower than the others.", show_default="as each check"
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Maximum seconds of a check on a node.", min=1)] = 60.0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="An option of a check, e.g. memory.timeout_s=30.", metavar="CHECK.OPTION=VALUE"),
    ] = None,
    as_json: JsonFlag = False,
    runs_dir: RunsDir = None,
) -> None:
    """Measure every node that has room, before a job needs it.

    The checks are those that job files list under plugins.checks, from any distribution. All nodes run at the same
    time; on each node the checks run one after the other. A node fails if a check fails on it, or if it is much slower
    than the others. For the network check all nodes must share the runs folder.

    Exit code: 0 all nodes are fit, 1 some are not or could not be measured, 2 nothing was measured.

    Examples:

      rolemesh check

      rolemesh check --address auto --gpus 8 matmul network --json

      rolemesh check --address auto --slower 1.5

      rolemesh check ours.py:Licence --set ours.py:Licence.server=lic01 --set 'ours.py:Licence.at_least={seats: 8}'
    """
    names = checks or list(USUAL)
    given = _given(names, settings or ())
    chosen = {"backend": backend or ("ray" if address else "local")}
    chosen |= {name: value for name, value in (("address", address), ("nodes", nodes)) if value}
    engine = engine_named("durable")
    options = options_for(engine, chosen, "rolemesh check", "see rolemesh check --help")
    console = Console(stderr=True)
    runs = runs_folder(runs_dir)
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".check-", dir=runs))
    results: list[NodeResult] = []
    why = ""

    def finish(run: JobRun, handle: RunHandle) -> int:
        nonlocal why
        with console.status("measuring …"):
            result = handle.wait(lambda: handle.stop("rolemesh check was interrupted"))
        results.extend(found(run.run_dir))
        if result is None or result["status"] != "done":
            why = str(result["message"]) if result else "the job that measures has died"
        return EXIT_DONE

    name = f"check-{os.getpid()}"
    job = probing(names, name, gpus=gpus, slower=slower, timeout_s=timeout, given=given)
    try:
        run = JobRun(
            job.validate("durable"),
            engine,
            options,
            folder,
            lambda text: console.print(text, style="dim"),
            False,
            finish,
        )
        run.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not results:
        raise JobFailedError(f"no node was measured: {why}", where="rolemesh check", remedy="is there a free node?")
    fit = all(not each.unfit for each in results) and not why
    if as_json:
        print_json({"fit": fit, "nodes": [each.told() for each in results], "message": why})
    else:
        Console().print(_table(results))
        if why and all(not each.unfit for each in results):
            console.print(f"✘ {why}", style="red", markup=False)
        if len(results) == MOST_NODES:
            console.print(f"no more than {MOST_NODES} nodes are measured at once")
    raise typer.Exit(EXIT_DONE if fit else EXIT_FAILED)


def _given(checks: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return options by check. Raises `JobFileError` for a setting that is not ``CHECK.OPTION=VALUE`` of one of
    `checks`."""
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        check, dot, option = key.rpartition(".")
        where = f"--set {setting}"
        if not (equals and dot and option.isidentifier()):
            remedy = "write it so: --set memory.timeout_s=30"
            raise JobFileError(f"{setting!r} is no option of a check", where=where, remedy=remedy)
        if check not in checks:
            remedy = f"{nearest(check, checks)}; this call measures {', '.join(checks)}"
            raise JobFileError(f"the check {check!r} is not measured", where=where, remedy=remedy)
        found.setdefault(check, {})[option] = parse_yaml(text, where)[0]
    return found


def _table(results: list[NodeResult]) -> Table:
    names = list(dict.fromkeys(name for each in results for name in each.values))
    table = Table(box=None, pad_edge=False)
    for title in ("node", *names, ""):
        table.add_column(title, justify="right" if title in names else "left", overflow="fold")
    for each in results:
        numbers = (f"{each.values[name]:,.4g}" if name in each.values else "–" for name in names)
        table.add_row(each.node, *numbers, f"✘ {each.unfit}" if each.unfit else "✔")
    return table
