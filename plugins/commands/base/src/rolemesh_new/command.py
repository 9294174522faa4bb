"""``rolemesh new``: make a job; or ask for the variables of the plugins' template, check the answers, fill it in."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.cli.output import print_json
from rolemesh.cli.verbs import OWN
from rolemesh.errors import PluginError, RolemeshError, nearest, raise_all
from rolemesh.kinds import kind_names
from rolemesh.kinds.installed import entry_points, normalized
from rolemesh.kinds.offered import OFFERED
from rolemesh_new.jobs import CACHED, HUB, JOBS, REWARD, make_job

__all__ = ["KINDS", "NewVerb"]

TEMPLATE = Path(__file__).parent / "_templates"
DEFAULTS: dict[str, Any] = json.loads((TEMPLATE / "cookiecutter.json").read_text(encoding="utf-8"))
KINDS: dict[str, str] = {kind: about["about"] for kind, about in DEFAULTS["_kinds"].items()}
"""The kinds of plugins, with a line about each."""
QUESTIONS = ("name", "author", "email", "description")
GIT_KEYS = {"author": "user.name", "email": "user.email"}
NEXT = (
    "cd {folder}",
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install -e '.[test]'",
    "pytest",
    "rolemesh run job.yaml {how}",
)


class NewVerb(Command):
    """`rolemesh new`."""

    help: ClassVar[str] = "Make a job, or a repository for a plugin of your own."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return new


def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="A kind of jobs or plugins, as listed above.", show_default=False)
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name of the job, or of the plugin.", show_default=False)
    ],
    into: Annotated[Path, typer.Option(help="The folder to make the new one in.", show_default=".")] = Path("."),
    model: Annotated[
        str | None,
        typer.Option(help=f"Jobs: a Hugging Face model, as a folder or a hub's name; default: {CACHED}, else {HUB}."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Jobs: your questions, pairs or text; or the name of a new file with some.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help=f"grpo and ppo: your function; or that of a new file; default: {REWARD}.")
    ] = None,
    author: Annotated[str | None, typer.Option(help="Plugins: your name; default: git's user.name.")] = None,
    email: Annotated[str | None, typer.Option(help="Plugins: your e-mail address; default: git's user.email.")] = None,
    description: Annotated[str | None, typer.Option(help="Plugins: what yours does, in one line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON; ask no questions.")] = False,
) -> None:
    """Make a job, or a repository for a plugin of your own.

    Jobs:

    JOBS

    `rolemesh new grpo my-job --data questions.jsonl --reward reward.py:correct` makes the folder my-job with a job
    file, a flow, and those of the named files that do not exist. All of it is yours to change.

    Plugins:

    KINDS

    Their repositories have working code, tests, a job that uses the plugin, and CI.

    `rolemesh new workload my-sampler` makes the folder rolemesh-my-sampler, a distribution whose plugin job files
    select with `use: my-sampler`. Its code is small but works: replace it by your own. Its tests begin with those that
    every plugin of its kind must pass (`rolemesh plugins check`).

    On a terminal, the command asks for values that no option gives. The templates also work without rolemesh:
    `cookiecutter REPO --directory cookiecutter kind=workload`.
    """
    offered = {"name": name, "author": author, "email": email, "description": description}
    given = {each: value for each, value in offered.items() if value is not None}
    of_jobs = {"model": model, "data": data, "reward": reward}
    if kind in JOBS:
        _refuse(kind, "a job", {each for each in given if each != "name"})
        told = make_job(kind, name, into, **of_jobs)
        _print(told, f"{told['folder']}: the {kind} job {name!r}: {', '.join(told['files'])}", as_json)
        return
    if kind not in KINDS:
        what = f"there is no kind {kind!r} of jobs or plugins to make"
        raise PluginError(what, kind="missing", remedy=nearest(kind, [*JOBS, *KINDS]))
    _refuse(kind, "a plugin", {each for each, value in of_jobs.items() if value is not None})
    folder = into / f"rolemesh-{name}"
    _check(dict.fromkeys(QUESTIONS, "x") | {"email": "x@example.com"} | given)
    if taken := _taken(name):
        raise PluginError(f"{name!r} {taken}", where="name", remedy=f"choose another, for example 'my-{name}'")
    if folder.exists():
        remedy = "choose another name, remove it, or make the repository elsewhere: --into DIR"
        raise RolemeshError("there is such a folder already", where=str(folder), remedy=remedy)
    defaults = {**DEFAULTS, "description": DEFAULTS["_kinds"][kind]["description"]}
    answers = {each: given.get(each) or _from_git(each) or defaults[each] for each in QUESTIONS}
    if sys.stdin.isatty() and not as_json:
        for each in (each for each in QUESTIONS if each not in given):
            answers[each] = typer.prompt(DEFAULTS["__prompts__"][each], default=answers[each])
    _check(answers)
    how = _bake({"kind": kind, **answers}, into)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    steps = [step.format(folder=shlex.quote(str(folder)), how=how) for step in NEXT]
    told = {"kind": kind, "name": name, "folder": str(folder), "files": files, "next": steps}
    _print(told, f"{folder}: the {kind} {name!r}, {len(files)} files", as_json)


for _name, _kinds in {"JOBS": {kind: job.about for kind, job in JOBS.items()}, "KINDS": KINDS}.items():
    _lines = "\n    ".join(f"{kind:<12} {about}" for kind, about in _kinds.items())
    new.__doc__ = (new.__doc__ or "").replace(_name, _lines)


def _refuse(kind: str, what: str, options: Collection[str]) -> None:
    """Raise `PluginError` for options that `kind`, which is `what`, does not take."""
    if options:
        named = ", ".join(f"--{each}" for each in sorted(options))
        raise PluginError(f"{kind} is {what}, which takes no {named}", remedy="leave it out")


def _print(told: Mapping[str, Any], line: str, as_json: bool) -> None:
    """Print what was made, and what to do next."""
    if as_json:
        print_json(told)
    else:
        print(f"{line}. Next:\n")
        print("\n".join(f"  {step}" for step in told["next"]))


def _check(answers: Mapping[str, str]) -> None:
    """Raise `PluginError` for every answer that the template's own check refuses."""
    problems = runpy.run_path(str(TEMPLATE / "hooks" / "pre_gen_project.py"))["problems"]
    found = problems(**{each: answers[each] for each in QUESTIONS})
    raise_all([PluginError(what, where=answer, remedy=remedy) for answer, what, remedy in found])


def _taken(name: str) -> str:
    """Return why no new plugin can have this name; "" if it can. Plugins count that are installed or known to be."""
    if name in OWN or name.replace("-", "_") in {*kind_names(), "kinds", "conformance"}:
        return "is a word of rolemesh's own"
    taken = set()
    for point in entry_points():
        _, _, plugin = point.name.rpartition(".")
        offers = point.value if point.group == OFFERED else point.dist.name if point.dist else ""
        taken |= {plugin, normalized(offers.partition(":")[0]).removeprefix("rolemesh-")}
    if name in taken:
        return "is a plugin that rolemesh has already"
    with suppress(PackageNotFoundError):
        return f"would replace {distribution(f'rolemesh-{name}').name}, which is installed"
    return ""


def _from_git(answer: str) -> str:
    """Return the value for `answer` from git's configuration; "" if it has none or git is missing."""
    with suppress(OSError, KeyError):
        asked = ["git", "config", "--get", GIT_KEYS[answer]]
        return subprocess.run(asked, capture_output=True, errors="replace", check=False).stdout.strip()
    return ""


def _bake(answers: Mapping[str, str], into: Path) -> str:
    """Write the repository into the folder `into`, and return the options that run its job.

    Raises `RolemeshError` if it cannot be written.
    """
    from cookiecutter.generate import generate_context, generate_files
    from cookiecutter.prompt import prompt_for_config

    context: dict[str, Any] = generate_context(str(TEMPLATE / "cookiecutter.json"), extra_context=dict(answers))
    context["cookiecutter"] = prompt_for_config(context, no_input=True)
    try:
        generate_files(TEMPLATE, context, output_dir=into, accept_hooks=False)
    except OSError as error:
        raise RolemeshError(f"no folder can be made here: {error.strerror or error}", where=str(into)) from error
    return str(context["cookiecutter"]["__run"])
