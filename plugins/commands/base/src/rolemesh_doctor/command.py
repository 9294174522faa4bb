"""``rolemesh doctor``: gather the facts, all at once, and print the findings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import typer

from rolemesh.api.command import Command
from rolemesh.cli.arguments import JsonFlag, RunsDir
from rolemesh.cli.output import print_json
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, RolemeshError
from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.drivers import load
from rolemesh.runs.run import runs_folder
from rolemesh_doctor import facts, gather, judge
from rolemesh_doctor.finding import Finding
from rolemesh_doctor.isolated import Failed, Task, run

__all__ = ["DoctorVerb", "doctor", "findings"]

RAY_S = 20.0
"""Maximum time for the import of Ray, in seconds."""
OWN_S = 5.0
"""Maximum time for an examination of another distribution, in seconds."""
MARKS = {"ok": "ok", "warning": "WARNING", "error": "ERROR"}


class DoctorVerb(Command):
    """`rolemesh doctor`."""

    help: ClassVar[str] = "Look at this machine, and say what keeps jobs from running."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return doctor


def doctor(as_json: JsonFlag = False, runs_dir: RunsDir = None) -> None:
    """Examine this machine: Python, torch, Ray, shared memory, limits, disks, clock, plugins. Starts no job.

    Each finding has a remedy. Each examination runs in a process of its own; if it hangs or raises, that is a finding
    too.

    Exit code: 0, or 1 if a finding is an error.

    Examples:

      rolemesh doctor

      rolemesh doctor --json | jq '.findings[] | select(.status != "ok")'
    """
    found = findings(runs_folder(runs_dir))
    healthy = not any(each.status == "error" for each in found)
    if as_json:
        print_json({"healthy": healthy, "findings": [msgspec.to_builtins(each) for each in found]})
    else:
        print("\n".join(_lines(found)))
    raise typer.Exit(EXIT_DONE if healthy else EXIT_FAILED)


class _Examined(NamedTuple):
    """A part of the facts: the name of its finding, and the functions that gather and judge it."""

    name: str
    task: Task
    judge: Callable[[Any], Iterator[Finding]]


def findings(runs: Path) -> list[Finding]:
    """Return the findings on this machine, for jobs with this runs folder, in the order of output."""
    examined = _examined(runs)
    tasks = {key: each.task for key, each in examined.items()}
    own = {f"{record.distribution}:{record.name}": record for record in _examinations()}
    tasks |= {name: Task(partial(_examine, record), list[Finding], OWN_S) for name, record in own.items()}
    results = run(tasks)
    found = [finding for key, each in examined.items() for finding in judged(each.name, results[key], each.judge)]
    return found + [finding for name in own for finding in judged(name, results[name], iter)]


def _examinations() -> list[PluginRecord]:
    """Return the examinations of other distributions. Broken ones are among the findings about plugins."""
    with suppress(RolemeshError):
        return [record for record in discover(("doctor",)) if record.status == "available"]
    return []


def judged(name: str, result: Any, judge: Callable[[Any], Iterator[Finding]]) -> list[Finding]:
    """Return the findings about a result. If the facts could not be gathered, that is the finding."""
    why = result.why if isinstance(result, Failed) else ""
    if not why:
        try:
            return list(judge(result))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    remedy = "see whether a disk, a name server or a driver of this machine hangs, then: rolemesh doctor"
    return [Finding(name, "warning", f"it could not be looked at: {why}", remedy)]


def _examined(runs: Path) -> Mapping[str, _Examined]:
    tasks: dict[str, tuple[Callable[[], Any], Any, Callable[[Any], Iterator[Finding]], float]] = {
        "python": (gather.python, facts.Python, judge.python, 5.0),
        "torch": (gather.torch, facts.Torch, judge.torch, 5.0),
        "ray": (gather.ray, facts.Ray, judge.ray, RAY_S),
        "shm": (gather.shm, facts.SharedMemory, judge.shm, 5.0),
        "limits": (gather.limits, facts.Limits, judge.limits, 5.0),
        "fork": (gather.abilities, facts.Abilities, judge.abilities, 5.0),
        "ports": (gather.network, facts.Network, judge.network, 5.0),
        "host": (gather.host, facts.Host, judge.host, 5.0),
        "disk": (partial(gather.disk, runs), facts.Disk, judge.disk, 5.0),
        "tmp": (partial(gather.disk, Path("/tmp")), facts.Disk, judge.tmp, 5.0),
        "clock": (partial(gather.clock, runs), facts.Clock, judge.clock, 5.0),
        "plugins": (gather.plugins, facts.Plugins, judge.plugins, 10.0),
        "installation": (gather.installation, facts.Installation, judge.installation, 10.0),
        "working-dir": (gather.working_dir, facts.WorkingDir, judge.working_dir, 5.0),
    }
    return {name: _Examined(name, Task(do, kind, limit), how) for name, (do, kind, how, limit) in tasks.items()}


def _examine(record: PluginRecord) -> list[Finding]:
    cls = load(record)
    return list(cls(cls.Options()).examine())


def _lines(found: list[Finding]) -> Iterator[str]:
    colours = {"warning": "\033[33m", "error": "\033[1;31m"} if sys.stdout.isatty() else {}
    width = max(len(each.name) for each in found)
    for each in found:
        colour = colours.get(each.status, "")
        mark = f"{colour}{MARKS[each.status]:7}{colour and chr(27) + '[0m'}"
        yield f"{mark}  {each.name:{width}}  {each.what}"
        if each.remedy:
            yield f"{'':{width + 9}}  → {each.remedy}"
    counts = {status: sum(each.status == status for each in found) for status in ("error", "warning")}
    told = ", ".join(f"{count} {status}{'' if count == 1 else 's'}" for status, count in counts.items() if count)
    yield told or "nothing keeps jobs from running here"
