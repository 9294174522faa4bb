"""`rolemesh run`: run a job file, with whatever engine is installed."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from rolemesh.api.command import RunOption
from rolemesh.api.failures import job_failed
from rolemesh.cli.arguments import JobArgument, Overrides, RunsDir
from rolemesh.cli.verbs import run_options
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, JobFileError
from rolemesh.job.engine import Engine, RunHandle
from rolemesh.job.prepared import prepare
from rolemesh.job.run import JobRun, engine_named
from rolemesh.runs.run import runs_folder


def verb(given: Sequence[str]) -> Any:
    """The verb, with the options of the engine that the arguments `given` choose."""
    chosen = _chosen(given)
    engine = engine_named("inline" if "inline" in chosen else chosen.get("engine"))
    options = engine.options_for(chosen)
    extra = run_options()

    def command(**values: Any) -> None:
        raise typer.Exit(_run(engine, options, extra, values))

    fixed = inspect.signature(_fixed, eval_str=True)
    added = [*_parameters(options), *(option for each in extra for option in _parameters(each.Options))]
    parameters = [*fixed.parameters.values(), *added]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = _fixed.__doc__
    return command


def _fixed(
    job: JobArgument,
    overrides: Overrides = None,
    engine: Annotated[
        str | None, typer.Option(help="Which engine runs it.", show_default="durable if it is installed, or inline")
    ] = None,
    inline: Annotated[
        bool, typer.Option("--inline", help="Run everything in this process, so that a debugger works.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the job is running; its master goes on alone.")
    ] = False,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse plugins other than those of the job's lock (`plugins lock`).")
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Run a job: validate, trace, plan, start, watch.

    Ctrl-C ends the job. Everything about the run is kept in runs/NAME/.

    Exit code: 0 done, 1 the job failed, 2 it could not start (nothing was started), 130 interrupted.

    Examples:

      rolemesh run examples/hello/job.yaml

      rolemesh run examples/sft/job.yaml steps=10 --backend local

      rolemesh run examples/grpo/job.yaml --address auto --detach

      rolemesh run examples/grpo/job.yaml --resume grpo steps=30 roles.trainer.world_size=4

      rolemesh run job.yaml --backend local --chaos kills=10,seed=7 --chaos-compare
    """


def _chosen(given: Sequence[str]) -> dict[str, str]:
    """The options in `given` with their values, as far as they can be told before it is known which there are."""
    found: dict[str, str] = {}
    for argument, after in pairwise((*given, "")):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            found[name.replace("-", "_")] = value if equals else after
    return found


def _parameters(options: type[BaseModel]) -> Iterator[inspect.Parameter]:
    """The fields of a model as options of a command."""
    for name, field in options.model_fields.items():
        if not field.exclude:
            extra: Any = field.json_schema_extra
            metavar = extra.get("metavar") if isinstance(extra, dict) else None
            # Spelled out, a switch has no --no- counterpart.
            option = typer.Option(f"--{name.replace('_', '-')}", help=field.description, metavar=metavar)
            typed, keyword = Annotated[field.annotation, option], inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(name, keyword, default=field.get_default(), annotation=typed)


def _run(
    engine: type[Engine], options: type[BaseModel], extra: Sequence[type[RunOption]], values: Mapping[str, Any]
) -> int:
    if values["detach"] and not engine.outlives:
        raise JobFileError("this engine runs the job in this process, so it cannot be detached", remedy="leave one out")
    of_engine = options(**{name: values[name] for name in options.model_fields if name in values})
    job = prepare(values["job"], values["overrides"] or (), locked=values["locked"])
    folder = runs_folder(values["runs_dir"])
    run = JobRun(job, engine, of_engine, folder, _say, detached=values["detach"], finish=_finish)
    with ExitStack() as after:
        for number in (signal.SIGTERM, signal.SIGHUP):  # they end a job as Ctrl-C does
            after.callback(signal.signal, number, signal.signal(number, signal.default_int_handler))
        for cls in extra:
            option = cls(cls.Options(**{name: values[name] for name in cls.Options.model_fields}))
            if option.wanted():
                return option.run(run)
        return run.run()


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _finish(run: JobRun, handle: RunHandle) -> int:
    """Wait for the end of a job and tell it; raises `JobFailedError`."""
    name = run.job.job.spec.name
    asked = False

    def interrupted() -> None:
        nonlocal asked
        asked = True
        _say("\nstopping (Ctrl-C again to leave at once) …")
        threading.Thread(target=handle.stop, args=("interrupted by Ctrl-C",), name="stop", daemon=True).start()

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
        why = f" ({result['reason']})" if result.get("reason") else ""
        print(f"{name} {result['status']}: {result['committed_steps']}{of} steps{why}, in {run.run_dir}")
    if asked and result["status"] != "done":
        return EXIT_INTERRUPTED
    return int(result["exit_code"])
