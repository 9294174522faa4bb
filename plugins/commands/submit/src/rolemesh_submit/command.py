"""`rolemesh submit`: write a job for a cluster's scheduler. Nothing is applied."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.cli.arguments import JobArgument, Overrides
from rolemesh.errors import JobFileError
from rolemesh.job.prepared import Prepared, prepare
from rolemesh.runs.run import runs_folder
from rolemesh_submit.groups import Asked, groups_of
from rolemesh_submit.kuberay import Pods, manifest, secret_commands
from rolemesh_submit.kuberay import notes as pod_notes
from rolemesh_submit.slurm import Allocation, script
from rolemesh_submit.slurm import notes as allocation_notes
from rolemesh_submit.submission import Submission, check_name

__all__ = ["Submit", "submit"]

RUNS_IN_PODS = "/runs"
TIME = re.compile(
    r"(?:(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?|(?P<min>\d+)|(?P<ms>\d+:\d+)|(?P<hms>\d+:\d+:\d+))"
)
UNLIMITED = "UNLIMITED", "INFINITE", "-1"
"""Times without a limit, as Slurm reads them, in any case (`time_str2mins` of its sources)."""
PLACEHOLDER = "secret"


class Target(StrEnum):
    """The scheduler that takes the job."""

    KUBERAY = "kuberay"
    SLURM = "slurm"


class Submit(Command):
    """`rolemesh submit`."""

    help: ClassVar[str] = "Write a job as a RayJob for KubeRay, or as an sbatch script for Slurm."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return submit


def submit(
    job: JobArgument,
    to: Annotated[Target, typer.Option(help="The scheduler that takes it.", show_default=False)],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write.", show_default="stdout")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Number of nodes, or groups as in `plan`: '2x(cpu=16,gpu=8)'.", show_default="as the job needs"
        ),
    ] = None,
    cpus_per_node: Annotated[int | None, typer.Option(min=1, help="CPUs of a node that ranks may use.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="GPUs of a node.", show_default="as the job needs, at most 8")
    ] = None,
    memory_per_node: Annotated[
        float | None,
        typer.Option(min=1, help="Memory of a node including /dev/shm, in 10^9 bytes.", show_default="8 per CPU"),
    ] = None,
    runs_dir: Annotated[
        str | None,
        typer.Option(
            help="The runs folder there, on storage that all nodes share.", show_default="/runs; slurm: as here"
        ),
    ] = None,
    job_dir: Annotated[
        str | None, typer.Option(help="The job file's folder there.", show_default="RUNS/jobs/NAME; slurm: as here")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A variable with its value, which is not secret; may be repeated."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SECRET:KEY", help="kuberay: the secret with a variable's value; may be repeated."),
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Resume from this run's newest snapshot.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit, in sbatch's form: 1-12:00:00.")] = None,
    image: Annotated[str | None, typer.Option(help="kuberay: the image of all pods.")] = None,
    claim: Annotated[
        str | None, typer.Option(help="kuberay: the claim with the runs folder.", show_default="rolemesh-runs")
    ] = None,
    cluster_only: Annotated[
        bool, typer.Option("--cluster-only", help="kuberay: a RayCluster that stays, for `ray job submit`.")
    ] = False,
    partition: Annotated[str | None, typer.Option(help="slurm: the partition.")] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="LINE", help="slurm: a line to run first, e.g. 'module load cuda'.")
    ] = None,
) -> None:
    """Write what starts a job on a cluster of its own: a RayJob manifest, or an sbatch script. Nothing is applied.

    The job is checked and planned first. By default it gets the fewest and smallest nodes that it fits on; elastic
    roles give their minimum and maximum. The head of the output lists the requirements there (image, folders, secrets);
    with -o they are also printed on stderr.

    Values of ${VARIABLES} in the job file are never written: a RayJob refers to a secret, and a script takes them from
    the environment of sbatch. --env writes a value. An override can name a variable, too: KEY:='${VARIABLE}'. The check
    uses the values that are set here; variables with --env or --secret need not be set.

    Examples:

      rolemesh submit job.yaml --to kuberay --image registry/jobs:1 --gpus-per-node 8 -o rayjob.yaml

      rolemesh submit job.yaml --to slurm --partition gpu --time 12:00:00 -o job.sbatch && sbatch job.sbatch

      rolemesh submit job.yaml steps=500 --to slurm --setup '. /shared/venv/bin/activate' | sbatch
    """
    if to is Target.SLURM:
        of_pods = {"image": image, "claim": claim, "secret": secret, "cluster-only": cluster_only}
        _belongs("slurm", of_pods, "--to kuberay")
    else:
        _belongs("kuberay", {"partition": partition, "setup": setup}, "--to slurm")
    if cluster_only:
        _belongs("a RayCluster", {"resume": resume, "time": time, "job-dir": job_dir}, "leave out --cluster-only")
    settings = dict(_pair(text, "--env") for text in env or ())
    secrets = {name: _key(name, where) for name, where in (_pair(text, "--secret") for text in secret or ())}
    with _environment(settings, secrets):
        prepared = prepare(job, overrides or ())
    check_name(prepared.job, settings)
    asked = Asked(nodes, cpus_per_node, gpus_per_node, memory_per_node)
    runs, path = _places(to, prepared, runs_dir, job_dir)
    seconds = _seconds(time) if time else None
    submission = Submission(prepared, groups_of(prepared, asked), path, runs, settings, resume, seconds)
    _used(secrets, settings, submission)
    if to is Target.KUBERAY:
        if not image:
            what, remedy = "a RayJob needs an image", "give --image; docs/deploy.md has a Dockerfile"
            raise JobFileError(what, where="command line", remedy=remedy)
        pods = Pods(image, claim or "rolemesh-runs", secrets, cluster_only)
        text, notes, first = manifest(submission, pods), pod_notes(submission, pods), secret_commands(submission, pods)
        then = f"kubectl apply -f {shlex.quote(str(output))}"
    else:
        text = script(submission, Allocation(partition, time, setup or ()))
        notes, first, then = allocation_notes(submission), [], f"sbatch {shlex.quote(str(output))}"
    if output is None:
        sys.stdout.write(text)
        notes, then = [line for line in notes if "its value is not in this file" in line], ""
    else:
        _write(output, text)
        print(f"{output}: job {submission.name} on {submission.size}", file=sys.stderr)
    for line in [*notes, *(f"$ {command}" for command in (*first, then) if command)]:
        print(f"  {line}", file=sys.stderr)


def _belongs(target: str, others: Mapping[str, object], remedy: str) -> None:
    """Raise `JobFileError` if one of `others`, options that do not apply to the target, is given."""
    if given := next((name for name, value in others.items() if value not in (None, False)), None):
        what, remedy = f"--{given} does not apply to {target}", f"leave it out, or {remedy}"
        raise JobFileError(what, where="command line", remedy=remedy)


def _used(secrets: Iterable[str], settings: Mapping[str, str], submission: Submission) -> None:
    """Raise `JobFileError` for a variable of --secret that no pod would get."""
    known = {each.name for each in submission.variables}
    for name in (each for each in secrets if each not in known):
        what = f"--secret {name} has no effect: --env gives the variable a value"
        remedy = f"leave out --env {name}, or --secret {name}"
        if name not in settings:
            what = f"--secret {name} has no effect: the job file does not use ${{{name}}}"
            remedy = f"name it in the job file, such as in roles.ROLE.runtime_env.env_vars: {name}: ${{{name}}}"
        raise JobFileError(what, where="command line", remedy=remedy)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        what = f"{option} {text!r} names no variable and its value"
        remedy = "--env NAME=VALUE" if option == "--env" else "--secret NAME=SECRET:KEY"
        raise JobFileError(what, where="command line", remedy=remedy)
    return name, value


def _key(name: str, where: str) -> tuple[str, str]:
    secret, separator, key = where.partition(":")
    names = re.fullmatch(r"[a-z0-9][a-z0-9.-]*:[\w.-]+", f"{secret}:{key if separator else name}", re.ASCII)
    if names is None:
        what = f"--secret {name}={where} is not a secret and a key in it"
        raise JobFileError(what, where="command line", remedy="--secret NAME=SECRET:KEY, or NAME=SECRET")
    return secret, key or name


@contextmanager
def _environment(settings: Mapping[str, str], secrets: Iterable[str]) -> Iterator[None]:
    """Set the variables for the check: the values here, such as paths; else the future values; for a secret a
    placeholder."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(secrets, PLACEHOLDER) | dict(settings) | before)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _places(to: Target, prepared: Prepared, runs_dir: str | None, job_dir: str | None) -> tuple[str, str]:
    """Return the runs folder and the path of the job file on the cluster."""
    job = prepared.job
    if to is Target.SLURM:
        runs, folder = runs_dir or str(runs_folder()), job_dir or str(job.base)
        return str(Path(runs).absolute()), str(Path(folder).absolute() / job.path.name)
    runs = (runs_dir or RUNS_IN_PODS).rstrip("/")
    folder = (job_dir or f"{runs}/jobs/{job.spec.name}").rstrip("/")
    for option, given in (("--runs-dir", runs), ("--job-dir", folder)):
        if not given.startswith("/"):
            what = f"{option} {given!r} is no absolute path, and pods have no folder that it could be relative to"
            raise JobFileError(what, where="command line", remedy=f"{option} /runs")
    return runs, f"{folder}/{job.path.name}"


def _seconds(text: str) -> int:
    """Return the seconds of a time in sbatch's form: minutes, m:s, h:m:s, d-h, d-h:m, d-h:m:s. 0: no limit."""
    if text.upper() in UNLIMITED:
        return 0
    match = TIME.fullmatch(text)
    if match is None:
        what = f"--time {text!r} is not a time"
        raise JobFileError(
            what, where="command line", remedy="minutes, hours:minutes:seconds or days-hours:minutes:seconds"
        )
    if match["d"]:
        days, hours, minutes, seconds = (int(match[unit] or 0) for unit in "dhms")
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if match["min"]:
        return int(match["min"]) * 60
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise JobFileError(what, where="command line", remedy="give --output another path") from error
