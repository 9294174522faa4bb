"""`rolemesh run`: run a job file with the chosen engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from rolemesh.api.command import RunOption
from rolemesh.api.failures import job_failed
from rolemesh.cli.arguments import JobArgument, Overrides, RunsDir, chosen, with_options
from rolemesh.cli.output import print_text
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, JobFileError, RolemeshError
from rolemesh.job.engine import Engine, RunHandle
from rolemesh.job.prepared import prepare
from rolemesh.job.run import JobRun, engine_named, options_of
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs.run import runs_folder


def verb(given: Sequence[str]) -> Any:
    """Return the verb, with the options of the engine that the arguments `given` choose."""
    known = _known(given)
    name = known.get("engine")
    engine = engine_named(name or _in_job_file(given))
    options = engine.options_for(known)
    extra = options_of("run")

    def do(**values: Any) -> None:
        raise typer.Exit(_run(name, engine, options, chosen(extra, values), values))

    return with_options(do, fixed, [options, *(each.Options for each in extra)])


def fixed(
    job: JobArgument,
    overrides: Overrides = None,
    engine: Annotated[
        str | None, typer.Option(help="Which engine runs it.", show_default="the job file's")
    ] = None,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Return when the job is running; its master goes on alone."),
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Run a job: validate, trace, plan, start, watch.

    Ctrl-C ends the job. The run's folder, runs/NAME/, has everything about it.

    An override KEY=TEXT sets the text as typed. If the option does not take a string, the text is
    read as a number, true, false, null, [LIST] or {MAPPING}. KEY:=YAML sets a piece of a job file,
    with ${VARIABLES}.

    Exit code: 0 done, 1 the job failed, 2 it could not start (nothing was started), 130
    interrupted.

    Examples:

      rolemesh run examples/hello/job.yaml

      rolemesh run examples/sft/job.yaml steps=10 roles.trainer.world_size=4

      rolemesh run examples/grpo/job.yaml --detach

      rolemesh run examples/hello/job.yaml --engine inline
    """


def _in_job_file(given: Sequence[str]) -> str | None:
    """Return the engine that the job file or an override in `given` names, or None."""
    found: str | None = None
    for argument in given:
        key, equals, value = argument.partition("=")
        if equals and key.rstrip(":") in ("engine", "engine.use"):
            found = value
        elif argument.endswith((".yaml", ".yml")):
            with suppress(OSError, ValueError, RolemeshError):
                data, _ = parse_yaml(Path(argument).read_text(encoding="utf-8"), argument)
                written = data.get("engine") if isinstance(data, dict) else None
                use = written.get("use") if isinstance(written, dict) else written
                found = found or (use if isinstance(use, str) else None)
    return found


def _known(given: Sequence[str]) -> dict[str, str]:
    """Return the options in `given` with their values, as far as possible before the set of options
    is known."""
    found: dict[str, str] = {}
    for argument, after in pairwise((*given, "")):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            found[name.replace("-", "_")] = value if equals else after
    return found


def _run(
    name: str | None,
    engine: type[Engine],
    options: type[BaseModel],
    extra: Sequence[RunOption],
    values: Mapping[str, Any],
) -> int:
    if values["detach"] and not engine.outlives:
        raise JobFileError(
            "this engine runs the job in this process, so it cannot be detached",
            remedy="leave one out",
        )
    of_engine = options(**{name: values[name] for name in options.model_fields if name in values})
    admission = next(filter(None, (option.admission(values["job"]) for option in extra)), None)
    job = prepare(values["job"], values["overrides"] or (), admit=admission, engine=name)
    if job.selection.engine.cls is not engine:
        raise JobFileError(
            f"the engine is {job.selection.engine.record.name!r}",
            where=job.selection.engine.where,
            remedy=f"name it on the command line: --engine {job.selection.engine.record.name}",
        )
    folder = runs_folder(values["runs_dir"])
    run = JobRun(job, engine, of_engine, folder, _say, detached=values["detach"], finish=_finish)
    with ExitStack() as after:
        for option in extra:
            after.callback(option.ended, run)
        # They end a job as Ctrl-C does, unless this process ignores them.
        for number in [
            n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN
        ]:
            after.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))
        wanted = next((option for option in extra if option.wanted()), None)
        return run.run() if wanted is None else wanted.run(run)


def _say(text: str) -> None:
    print_text(text, err=True)


def _finish(run: JobRun, handle: RunHandle) -> int:
    """Wait for the end of a job and print the outcome. Raises `JobFailedError`."""
    name = run.job.job.spec.name
    asked = False

    def interrupted() -> None:
        nonlocal asked
        asked = True
        _say("\nstopping (Ctrl-C again to leave at once) …")
        threading.Thread(
            target=handle.stop, args=("interrupted by Ctrl-C",), name="stop", daemon=True
        ).start()

    try:
        if run.detached:
            handle.leave()
            if (result := handle.result()) is None:
                print(f"job {name} is running; rolemesh attach {name}")
                return EXIT_DONE
        else:
            result = handle.wait(interrupted)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if result is None:
        _say(f"error: the job {name!r} died without a result; see {run.run_dir}")
        return EXIT_FAILED
    if result["status"] == "failed":
        raise job_failed(result)
    if not run.job.selection.observers:
        of = f" of {result['steps']}" if result["steps"] else ""
        done = f"{result['committed_steps']}{of} steps"
        why = f" ({result['reason']})" if result.get("reason") else ""
        print_text(f"{name} {result['status']}: {done}{why}, in {run.run_dir}")
    return EXIT_INTERRUPTED if asked and result["status"] != "done" else int(result["exit_code"])
