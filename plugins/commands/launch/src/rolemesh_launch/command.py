"""`rolemesh launch`: run a training script with torchrun's flags."""

from __future__ import annotations

import functools
import os
import resource
import uuid
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.errors import JobFileError, NameInUseError
from rolemesh.job.run import JobRun, engine_named, options_for
from rolemesh.placement.nodes import this_machine
from rolemesh.runs.run import RUNS_ENV
from rolemesh_durable.api.jobs import SCRIPT_RUNS
from rolemesh_launch.flags import (
    OWN_VARIABLES,
    RESTARTS,
    Asked,
    free_name,
    ignored,
    job_name,
    keeps_state,
    node_range,
    plain,
    processes,
    script_file,
    signal_numbers,
    std,
    without_effect,
)
from rolemesh_launch.job import job_of
from rolemesh_launch.program import How
from rolemesh_launch.remedies import with_own_remedies
from rolemesh_launch.resuming import Note, decided, left_by
from rolemesh_launch.signals import STOPPING, caught
from rolemesh_launch.stdin import give
from rolemesh_launch.watching import Printing, finish, say, stop
from rolemesh_launch.writes import Written, written
from rolemesh_runtime.claim import is_run

__all__ = ["Launch", "launch"]


class Launch(Command):
    """`rolemesh launch`."""

    help: ClassVar[str] = "Run a training script as it is, with torchrun's flags."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return launch


def _flag(name: str, text: str, **more: Any) -> Any:
    """Return an option of torchrun, which may be written with underscores or given as a variable ``PET_…``."""
    under = name.replace("-", "_")
    names = (f"--{name}", f"--{under}", *more.pop("short", ()))
    return typer.Option(*names, help=text, envvar=f"PET_{under.upper()}", show_envvar=False, **more)


def with_free_name(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap the command: if a running job has the script's name, it takes another name."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        named = values["name"] or any(text.startswith(("name=", "name:=")) for text in values["override"] or ())
        for number in count(2):
            try:
                command(**values)
                return
            except NameInUseError as error:
                if named:
                    raise
                values["name"] = f"{job_name(values['script'][0])}-{number}"
                say(f"{error.what}: this one is called {values['name']}")

    return wrapped


@with_own_remedies
@with_free_name
def launch(
    context: typer.Context,
    script: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGUMENTS]...", help="The script and its arguments.")],
    nproc_per_node: Annotated[
        str, _flag("nproc-per-node", "Processes on each node: a number, cpu, gpu or auto.")
    ] = "1",
    nnodes: Annotated[
        str, _flag("nnodes", "Nodes: 2, or 1:4 for as many as there is room for, more or fewer later.")
    ] = "1",
    max_restarts: Annotated[
        int | None,
        _flag(
            "max-restarts",
            "How often the processes are started again, in all, before the job fails.",
            min=0,
            show_default=f"0, or {RESTARTS} if the script imports rolemesh_launch",
        ),
    ] = None,
    module: Annotated[bool, _flag("module", "SCRIPT is a module, as for python -m.", short=("-m",))] = False,
    no_python: Annotated[bool, _flag("no-python", "SCRIPT is an executable.")] = False,
    role: Annotated[str, _flag("role", "ROLE_NAME of the processes, and the prefix with --tee.")] = "default",
    tee: Annotated[
        str,
        _flag("tee", "Prefix what ranks print: 1 stdout, 2 stderr, 3 both; or 0:3,1:1 by local rank.", short=("-t",)),
    ] = "0",
    redirects: Annotated[
        str, _flag("redirects", "What goes to the log files only, in the same form.", short=("-r",))
    ] = "0",
    local_ranks_filter: Annotated[str, _flag("local-ranks-filter", "Show only these local ranks: 0,1.")] = "",
    log_dir: Annotated[
        Path | None, _flag("log-dir", "The runs folder; default: .rolemesh. Logs are in NAME/logs below it.")
    ] = None,
    rdzv_id: Annotated[str, _flag("rdzv-id", "TORCHELASTIC_RUN_ID.")] = "",
    standalone: Annotated[bool, _flag("standalone", "One node; needs no more than that.")] = False,
    run_path: Annotated[bool, _flag("run-path", "Not needed: SCRIPT runs in a process that is up.")] = False,
    shutdown_timeout: Annotated[
        float, _flag("shutdown-timeout", "Seconds that the script has to end after SIGTERM.", min=0.1)
    ] = 30.0,
    rdzv_backend: Annotated[str, _flag("rdzv-backend", "Not needed: processes meet through rolemesh.")] = "",
    rdzv_endpoint: Annotated[str, _flag("rdzv-endpoint", "Not needed.")] = "",
    rdzv_conf: Annotated[str, _flag("rdzv-conf", "Not needed.")] = "",
    node_rank: Annotated[str, _flag("node-rank", "0: one command starts all nodes.")] = "",
    master_addr: Annotated[str, _flag("master-addr", "Not needed.")] = "",
    master_port: Annotated[str, _flag("master-port", "Not needed.")] = "",
    local_addr: Annotated[str, _flag("local-addr", "Not needed.")] = "",
    monitor_interval: Annotated[str, _flag("monitor-interval", "Not needed: deaths are seen at once.")] = "",
    start_method: Annotated[str, _flag("start-method", "Not needed: processes are forked.")] = "",
    event_log_handler: Annotated[str, _flag("event-log-handler", "Is ignored: see rolemesh events.")] = "",
    signals_to_handle: Annotated[
        str,
        _flag(
            "signals-to-handle",
            "Signals of the command that reach the processes and stop the job.",
            show_default=",".join(number.name for number in STOPPING),
        ),
    ] = "",
    duplicate_stdout_filters: Annotated[str, _flag("duplicate-stdout-filters", "Is refused.")] = "",
    duplicate_stderr_filters: Annotated[str, _flag("duplicate-stderr-filters", "Is refused.")] = "",
    logs_specs: Annotated[str, _flag("logs-specs", "Is refused.")] = "",
    numa_binding: Annotated[str, _flag("numa-binding", "Is refused.")] = "",
    virtual_local_rank: Annotated[bool, _flag("virtual-local-rank", "Is refused.")] = False,
    name: Annotated[str, typer.Option(help="The job's name.", show_default="the script's")] = "",
    backend: Annotated[
        str | None, typer.Option(help="Backend: local or ray.", show_default="ray with --address, else local")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster to run on, or auto.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Emulate these nodes on this machine: 2x(cpu=4).", show_default="as many as asked"),
    ] = None,
    hang_after: Annotated[
        float, typer.Option(help="Seconds without an optimizer step after which the job counts as hung; 0: never.")
    ] = 0.0,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Set a key of the job file: roles.worker.resources.cpu=4.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the job is running.")] = False,
    print_job: Annotated[bool, typer.Option("--print-job", help="Print the job file, and start nothing.")] = False,
    runs_dir: Annotated[
        Path | None, typer.Option(help="Where the runs' folders are.", envvar=RUNS_ENV, show_default=f"./{SCRIPT_RUNS}")
    ] = None,
    resume: Annotated[
        str,
        typer.Option(
            help="Where a script that keeps its state continues: auto, after an unfinished run of the same "
            "command; never; or a job's name, or a run's or snapshot's folder.",
            metavar="auto|never|PATH",
        ),
    ] = "auto",
) -> None:
    """Run an unchanged training script, with torchrun's flags.

    The script finds the environment that torchrun would give it. Its processes restart within a fraction of a second.
    All other verbs, such as status, logs and events, work with the job's name. Ctrl-C, SIGTERM and other signals reach
    all processes of the script at once, and end the job. The processes have time to save their state.

    Exit code: 0 done, 1 the script failed, 2 nothing was started, 130 interrupted.

    Examples:

      rolemesh launch --nproc-per-node 4 train.py --lr 0.1

      rolemesh launch --nnodes 2 --nproc-per-node 8 --address auto -m package.train config.yaml

      rolemesh launch --nproc-per-node 2 train.py --print-job > job.yaml
    """
    if script[1:2] == ["--"]:
        del script[1]  # as torchrun does
    given = {
        "rdzv-backend": rdzv_backend, "rdzv-endpoint": rdzv_endpoint, "rdzv-conf": rdzv_conf, "node-rank": node_rank,
        "master-addr": master_addr, "master-port": master_port, "local-addr": local_addr,
        "monitor-interval": monitor_interval, "start-method": start_method, "event-log-handler": event_log_handler,
        "duplicate-stdout-filters": duplicate_stdout_filters,
        "duplicate-stderr-filters": duplicate_stderr_filters, "logs-specs": logs_specs, "numa-binding": numa_binding,
        "virtual-local-rank": "1" if virtual_local_rank else "",
    }  # fmt: skip
    for text in ignored({flag: value for flag, value in given.items() if value}):
        say(text)
    own = {
        "nodes": nodes, "log-dir": log_dir, "runs-dir": runs_dir, "standalone": standalone, "nnodes": nnodes,
        "run-path": run_path, "no-python": no_python, "detach": detach, "print-job": print_job,
        "tee": tee.strip("0"), "redirects": redirects.strip("0"), "local-ranks-filter": local_ranks_filter,
        "backend": backend, "address": address, "resume": resume.removeprefix("auto"),
    }  # fmt: skip
    given = {flag: str(value) for flag, value in own.items() if value}
    for text in without_effect(given, ray=backend == "ray" or (backend is None and address is not None)):
        say(text)
    if module and no_python:
        raise JobFileError("a module needs Python", where="--no-python", remedy="leave -m or --no-python out")
    signals = signal_numbers(signals_to_handle) if signals_to_handle else STOPPING
    told = {"TORCHELASTIC_SIGNALS_TO_HANDLE": signals_to_handle} if signals_to_handle else {}
    target, *arguments = script
    here = not print_job and (backend or ("ray" if address else "local")) == "local"
    cluster = this_machine()
    machine = cluster.nodes[0]
    per_node = processes(nproc_per_node, max(1, os.cpu_count() or 1), int(machine.gpu))
    least, most = node_range("1" if standalone else nnodes)
    on_gpus = machine.gpu >= per_node and nproc_per_node != "cpu"
    one_thread = {"OMP_NUM_THREADS": "1"} if per_node > 1 else {}
    how: How = "module" if module else "executable" if no_python and not run_path else "path"
    keeps = how != "executable" and keeps_state(script_file(target, how), Path.cwd())
    if max_restarts is None:
        max_restarts = RESTARTS if keeps else 0
    early = written(script_file(target, how), Path.cwd(), os.environ) if how != "executable" else Written({}, True)
    if not early.known:
        say(f"{target} sets environment variables before it imports torch, so each worker imports torch itself")
    runs = log_dir or runs_dir or Path(SCRIPT_RUNS)
    job_called = name or free_name(job_name(target), lambda each: taken(runs / each))
    if not name and job_called != job_name(target):
        say(f"{runs / job_name(target)} was not made by rolemesh and stays: this job is called {job_called}")
    asked = Asked(
        target=target,
        how=how,
        arguments=tuple(map(plain, arguments)),
        nodes=(least, most),
        per_node=per_node,
        gpus=1.0 if on_gpus else 0.0,
        max_restarts=max_restarts,
        keeps_state=keeps,
        run_id=rdzv_id or (str(uuid.uuid4()) if standalone or not rdzv_backend else "none"),
        role_name=role,
        hang_after_s=hang_after or None,
        threads=per_node == 1 and "OMP_NUM_THREADS" not in {**os.environ, **early.variables},
        environment={
            name: os.environ.get(name, one_thread.get(name))
            for name in (*OWN_VARIABLES, *early.variables, *(("CUDA_VISIBLE_DEVICES",) if here else ()))
        }
        | told,
        early=early.variables,
        preload=early.known,
        grace_s=shutdown_timeout,
        stdin=context.with_resource(give()) if here and not detach else "",
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0] if here else None,
        name=job_called,
    )
    job = job_of(asked, Path.cwd())
    if print_job:
        typer.echo(job.text(), nl=False)
        return
    prepared = job.validate("durable")
    if override:
        prepared = prepared.again(override)
    engine = engine_named("durable")
    chosen = {"backend": backend or ("ray" if address else "local")}
    if address:
        chosen["address"] = address
    elif chosen["backend"] == "local":
        chosen["nodes"] = nodes or f"{most}x(cpu={per_node}{f',gpu={per_node}' if on_gpus else ''})"
    called = prepared.job.spec.name
    note = Note.of(asked, script_file(target, how), Path.cwd(), override or ())
    going_on = decided(resume, left_by((runs / called).resolve()) if keeps else None, note)
    for text in going_on.said:
        say(text)
    if going_on.reference:
        chosen["resume"] = going_on.reference
    options = options_for(engine, chosen, "rolemesh launch", "see rolemesh launch --help")
    printing = Printing(std(tee, "--tee"), std(redirects, "--redirects"), role, per_node, _ranks(local_ranks_filter))
    run = JobRun(prepared, engine, options, runs, say, detached=detach, finish=finish(printing, note))
    with caught(signals, partial(stop, run.run_dir)):
        raise typer.Exit(run.run())


launch.context_settings = {"allow_interspersed_args": False}  # type: ignore[attr-defined]


def taken(place: Path) -> bool:
    """Whether something is there that is no run."""
    return os.path.lexists(place) and not is_run(place)


def _ranks(text: str) -> frozenset[int] | None:
    """``--local-ranks-filter``. Raises `JobFileError`."""
    if not text:
        return None
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise JobFileError(f"{text!r} are no ranks", where="--local-ranks-filter", remedy="write 0,1")
    return frozenset(int(part) for part in text.split(","))
