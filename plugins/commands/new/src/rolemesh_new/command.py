"""``rolemesh new``: ask for the variables of a template, check the answers, and fill the template in."""

from __future__ import annotations

import json
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from rolemesh.api.command import Command
from rolemesh.cli.output import print_json
from rolemesh.errors import PluginError, RolemeshError, nearest, raise_all
from rolemesh.kinds.installed import distribution

__all__ = ["KINDS", "NewVerb"]

KINDS = {
    "workload": "what a role runs",
    "source": "records that keep coming",
    "scheduler": "where ranks go",
    "failover": "how what died comes back",
    "diagnoser": "whose fault a failure is",
    "scaler": "how many ranks roles have",
    "check": "what a node must measure up to",
    "extension": "a feature of ranks",
    "engine": "what runs a job",
    "backend": "where a job's processes live",
    "environment": "tasks that a model works on",
    "harness": "how a model works on them",
    "sandbox": "where a model's commands run",
    "store": "where a job's journal is kept",
    "transport": "how values travel",
    "observer": "who watches a job",
    "command": "a verb of the command line",
    "examination": "what rolemesh doctor looks at",
    "kind": "a kind of plugins of your own",
}
"""The templates, with a line about each."""
TEMPLATES = Path(__file__).parent / "_templates"
QUESTIONS = ("name", "author", "email", "description")
GIT_KEYS = {"author": "user.name", "email": "user.email"}
NEXT = (
    "cd {folder}",
    "python3 -m venv .venv && . .venv/bin/activate",
    "pip install -e '.[test]'",
    "pytest",
    "rolemesh run job.yaml {how}",
)
RUN = {"engine": "--engine {name}", "backend": "--backend {name}"}
"""Template → options that run its job, for templates that do not use ``--backend local``."""


class NewVerb(Command):
    """`rolemesh new`."""

    help: ClassVar[str] = "Make a repository for a plugin of your own."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return new


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.", show_default=False)],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The plugin's name in job files: my-sampler.", show_default=False)
    ],
    into: Annotated[Path, typer.Option(help="The folder to make the repository in.", show_default=".")] = Path("."),
    author: Annotated[str | None, typer.Option(help="Your name; default: git's user.name.")] = None,
    email: Annotated[str | None, typer.Option(help="Your e-mail address; default: git's user.email.")] = None,
    description: Annotated[str | None, typer.Option(help="What the plugin does, in one line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON; ask no questions.")] = False,
) -> None:
    """Make a repository for a plugin of your own.

    It has working code, tests, a job that uses the plugin, and CI. The kinds:

    KINDS

    `rolemesh new workload my-sampler` makes the folder rolemesh-my-sampler, a distribution whose plugin job files
    select with `use: my-sampler`. Its code is small but works: replace it by your own. Its tests begin with those that
    every plugin of its kind must pass (`rolemesh plugins check`).

    On a terminal, the command asks for values that no option gives. The templates also work without rolemesh:
    `cookiecutter REPO --directory cookiecutter/workload`.
    """
    if kind not in KINDS:
        what = f"there is no kind {kind!r} of plugins to make"
        raise PluginError(what, kind="missing", remedy=nearest(kind, list(KINDS)))
    folder = into / f"rolemesh-{name}"
    offered = {"name": name, "author": author, "email": email, "description": description}
    given = {each: value for each, value in offered.items() if value is not None}
    with _template(kind) as template:
        defaults = json.loads((template / "cookiecutter.json").read_text(encoding="utf-8"))
        _check(template, {**defaults, **given})
        if folder.exists():
            remedy = "choose another name, remove it, or make the repository elsewhere: --into DIR"
            raise RolemeshError("there is such a folder already", where=str(folder), remedy=remedy)
        answers = {each: given.get(each) or _from_git(each) or defaults[each] for each in QUESTIONS}
        if sys.stdin is not None and sys.stdin.isatty() and not as_json:
            for each in (each for each in QUESTIONS if each not in given):
                answers[each] = typer.prompt(defaults["__prompts__"][each], default=answers[each])
        _check(template, answers)
        _bake(template, answers, into)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    how = RUN.get(kind, "--backend local").format(name=name)
    steps = [step.format(folder=shlex.quote(str(folder)), how=how) for step in NEXT]
    if as_json:
        print_json({"kind": kind, "name": name, "folder": str(folder), "files": files, "next": steps})
    else:
        print(f"{folder}: the {kind} {name!r}, {len(files)} files. Next:\n")
        print("\n".join(f"  {step}" for step in steps))


new.__doc__ = (new.__doc__ or "").replace("KINDS", "\n    ".join(f"{k:<12} {about}" for k, about in KINDS.items()))


@contextmanager
def _template(kind: str) -> Iterator[Path]:
    """Yield the template of `kind` in a folder of its own, with the files that all templates share."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-new-") as folder:
        template = Path(folder, kind)
        compiled = shutil.ignore_patterns("__pycache__")  # pip compiles templates too
        shutil.copytree(TEMPLATES / "_shared", template, ignore=compiled)
        shutil.copytree(TEMPLATES / kind, template, ignore=compiled, dirs_exist_ok=True)
        (repository,) = template.glob("{{*")
        if not (license := repository / "LICENSE").exists():  # rolemesh's own is the same, and installed with it
            license.write_text(distribution("rolemesh").read_text("licenses/LICENSE") or "", encoding="utf-8")
        yield template


def _check(template: Path, answers: Mapping[str, str]) -> None:
    """Raise `PluginError` for every answer that the template's own check refuses."""
    problems = runpy.run_path(str(template / "hooks" / "pre_gen_project.py"))["problems"]
    found = problems(**{each: answers[each] for each in QUESTIONS})
    raise_all([PluginError(what, where=answer, remedy=remedy) for answer, what, remedy in found])


def _from_git(answer: str) -> str:
    """Return the value for `answer` from git's configuration; "" if it has none or git is missing."""
    with suppress(OSError, KeyError):
        asked = ["git", "config", "--get", GIT_KEYS[answer]]
        return subprocess.run(asked, capture_output=True, errors="replace", check=False).stdout.strip()
    return ""


def _bake(template: Path, answers: Mapping[str, str], into: Path) -> None:
    """Write the repository into the folder `into`. Raises `RolemeshError` if it cannot be written."""
    from cookiecutter.generate import generate_context, generate_files
    from cookiecutter.prompt import prompt_for_config

    context: dict[str, Any] = generate_context(str(template / "cookiecutter.json"), extra_context=dict(answers))
    context["cookiecutter"] = prompt_for_config(context, no_input=True)
    try:
        generate_files(template, context, output_dir=into, accept_hooks=False)
    except OSError as error:
        raise RolemeshError(f"no folder can be made here: {error.strerror or error}", where=str(into)) from error
