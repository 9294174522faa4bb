"""The texts and lists of the repository: documents, tables, decisions, results of benchmarks, kinds.

``python -m tests.texts`` prints what is wrong, and fails then; ``make lint`` runs it.
Tests run what a page says to run.
"""

from __future__ import annotations

import ast
import importlib
import json
import math
import re
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from benchmarks.__main__ import NAMES
from benchmarks.report import COUNTED, RESULTS
from docs.generator import events, reference
from docs.generator.drawing import drawn
from docs.generator.hooks import signatures
from docs.generator.navigation import completed
from docs.generator.parts import PARTS
from packaging.requirements import Requirement
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo
from tests import more, readability
from tests.prose import GENERATED, documents, without_code
from tests.surface import MODULES

import rolemesh
from rolemesh.api.failures import Cause
from rolemesh.api.plugin import Plugin
from rolemesh.errors import RolemeshError
from rolemesh.job_file import load
from rolemesh.job_file.model import JobSpec, Use
from rolemesh.kinds import Kind, kind_named, kind_names, kinds
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import LIMITS_S
from rolemesh_durable.options import DurableOptions
from rolemesh_durable.protocol.master.state import Phase, RankRecord, Recovery
from rolemesh_rehearsal.spec import TARGETS
from rolemesh_testing.conformance import InstalledConformance
from rolemesh_testing.observers.lives import EVENTS

__all__ = ["CHECKS", "KINDS_OF_PLUGINS", "blocks", "check_report", "defined", "missing_links", "plugin_source"]

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md", "plugins/*/*/README.md", "benchmarks/*.md", "core/*.md")
    for path in ROOT.glob(pattern)
)
PYTHONS = "3.11", "3.12", "3.13"
"""The Pythons that `make interpreters` runs."""
README_WORDS = 1200
WORDS = 82_500
"""Maximum number of words of all documents by hand, without code blocks."""
DECISION_WORDS = 150
DECLARATIONS = "kinds"
KINDS_OF_PLUGINS = {
    "write-a-workload": ("workloads", "shuffler", "Shuffler"),
    "write-a-scheduler": ("schedulers", "headroom", "Headroom"),
    "write-a-failover-level": ("failover", "whole-role", "WholeRole"),
    "write-a-diagnoser": ("diagnosers", "our-cluster", "OurCluster"),
    "write-an-observer": ("observers", "metric-csv", "MetricCsv"),
    "write-a-transport": ("transports", "plain-tcp", "PlainTcp"),
}
"""Page, and the plugin whose making it shows: kind, name, class."""
Check = Callable[[], Iterator[str]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Let `make lint` print what `function` yields."""
    CHECKS.append(function)
    return function


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def differ(where: str, said: Any, found: Any) -> Iterator[str]:
    """Yield each item that only one of two collections has."""
    said, found = set(said), set(found)
    yield from (f"{where}: {each!r} does not exist" for each in sorted(said - found))
    yield from (f"{where}: {each!r} is there and is not said" for each in sorted(found - said))


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), flags=re.MULTILINE | re.DOTALL)


def defined(source: str, name: str) -> Any:
    """Run a documented block and return the value of `name`."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    exec(compile(source, f"<{name} in the documents>", "exec"), namespace)
    return namespace[name]


def plugin_source(page: str) -> str:
    """The block of a page that defines its plugin."""
    name = KINDS_OF_PLUGINS[page][2]
    return next(block for block in blocks(f"docs/{page}.md", "python") if f"class {name}(" in block)


def shown_type(annotation: Any) -> str:
    """A type as the table of job-file keys shows it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(shown_type(each) for each in arguments if each is not type(None))
    if origin is Literal:
        return " or ".join(map(str, arguments))
    if origin is list:
        item = shown_type(arguments[0])
        return f"list of {item}s" if item == "string" else f"list of {item}"
    if origin is dict:
        return f"mapping to {shown_type(arguments[1])}s"
    if hasattr(annotation, "__metadata__"):
        return shown_type(annotation.__origin__)
    if annotation is Use:
        return "`{use, options}`"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    names = {Any: "value", str: "string", int: "integer", float: "number", bool: "boolean", ByteSize: "byte size"}
    return names[annotation]


def shown_default(field: FieldInfo) -> str:
    """A default as the table shows it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Use):
        return f"`{json.dumps(value.use)}`"
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{json.dumps(value)}`"


def key_rows(model: type[BaseModel], prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, type, default) of every key that a job file may have, parents first."""
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if annotation is Use:
            rows.append((prefix + name, "name or `{use, options}`", shown_default(field)))
            continue
        rows.append((prefix + name, shown_type(annotation), shown_default(field)))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            rows += key_rows(annotation, f"{prefix}{name}.")
        elif get_origin(annotation) is dict:
            inner = get_args(annotation)[1]
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                rows += key_rows(inner, f"{prefix}{name}.NAME.")
    return rows


def installs(words: list[str], projects: dict[str, Any]) -> set[str]:
    """Return what ``pip install WORDS`` installs: all distributions of rolemesh, and the words' other packages."""
    found, todo = set[str](), [Requirement(word) for word in words]
    while todo:
        asked = todo.pop()
        found.add(asked.name)
        if project := projects.get(asked.name):
            for lines in (project["dependencies"], *(project["optional-dependencies"][e] for e in asked.extras)):
                todo += map(Requirement, lines)
    return found


def used(job: Any) -> set[str]:
    """Return the names of plugins in a job file, or in a part of it."""
    if isinstance(job, dict):
        inner = set[str]().union(*map(used, job.values()))
        return inner | {job["use"]} if isinstance(job.get("use"), str) else inner
    return set[str]().union(*map(used, job)) if isinstance(job, list) else set()


def distributions() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of each distribution, and what its `pyproject.toml` says of the project."""
    for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/*/pyproject.toml"))):
        yield path.parent, tomllib.loads(path.read_text())["project"]


# --------------------------------------------------------------------------------------------------------------- hooks


@check
def hooks_in_the_overview() -> Iterator[str]:
    table = text_of("docs/hooks.md").partition("## When they are called")[2]
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| .* \| (.*?) \|$", table, flags=re.MULTILINE))
    yield from differ("docs/hooks.md", rows, signatures())
    for hook, limit in rows.items():
        if limit != (f"{LIMITS_S[hook]:g} s" if hook in LIMITS_S else "a minute" if hook == "job_ended" else "none"):
            yield f"docs/hooks.md: the time limit of {hook} is not that of the code"


@check
def pages_about_plugins() -> Iterator[str]:
    for page, (kind, name, cls) in KINDS_OF_PLUGINS.items():
        path, text = f"docs/{page}.md", text_of(f"docs/{page}.md")
        project = tomllib.loads(blocks(path, "toml")[-1])["project"]
        module = f"rolemesh_{name}".replace("-", "_")
        if project["entry-points"] != {f"rolemesh.{kind}": {name: f"{module}:{cls}"}}:
            yield f"{path}: its block of toml does not declare {cls}"
        base = kind_named(kind).base_class()
        if base is None or not issubclass(defined(plugin_source(page), cls), base):
            yield f"{path}: {cls} is no {base}"
        if f"`{module}" not in text and f"{module}/" not in text:
            yield f"{path}: it does not name the file of {module}"
        attributes = {each for each in base.__annotations__ if not each.startswith("_")} if base else set()
        lacks = attributes - set(re.findall(r"^\| `(\w+)` \| ", text, flags=re.MULTILINE))
        if lacks and page != "write-a-transport":
            yield f"{path}: no row for the class attributes {sorted(lacks)}"


@check
def kinds_of_plugins() -> Iterator[str]:
    """Each kind has a documented base class, a conformance class, a template, and a page that docs/hooks.md links."""
    pages = yaml.safe_load(text_of("docs/generator/reference.yaml")).values()
    documented = {name for page in pages for name in page["names"]}
    groups = {each["group"] for each in json.loads(text_of("cookiecutter/cookiecutter.json"))["_kinds"].values()}
    rows, conformance = text_of("docs/hooks.md").splitlines(), text_of("docs/conformance.md")
    for name in (*kind_names(), DECLARATIONS):
        if name == DECLARATIONS:
            base, kit = f"{Kind.__module__}:{Kind.__name__}", "rolemesh_testing:KindConformance"
        else:
            base, kit = kinds()[name].base, kinds()[name].conformance
        module, _, cls = base.partition(":")
        if not getattr(importlib.import_module(module), cls).__doc__ or f"{module}.{cls}" not in documented:
            yield f"docs/generator/reference.yaml: {module}.{cls} is on no page"
        if not kit:
            yield f"the kind {name} names no conformance class"
            continue
        module, _, cls = kit.partition(":")
        found = getattr(importlib.import_module(module), cls)
        if not issubclass(found, InstalledConformance) or found.kind != name:
            yield f"{kit} is no conformance class of {name}"
        if f"{found.__module__}.{cls}" not in documented:
            yield f"docs/generator/reference.yaml: {found.__module__}.{cls} is on no page"
        if f"`{cls}`" not in conformance:
            yield f"docs/conformance.md: it does not name {cls}"
        if name not in groups:
            yield f"cookiecutter/cookiecutter.json: there is no template for {name}"
        row = next((line for line in rows if line.startswith(f"| `rolemesh.{name}` |")), "")
        linked = re.findall(r"\]\((write-[a-z-]+\.md)", row)
        if not linked or f"rolemesh.{name}" not in text_of(f"docs/{linked[0]}"):
            yield f"docs/hooks.md: the row of rolemesh.{name} links no page that names the group"


@check
def classes_on_the_page_about_other_kinds() -> Iterator[str]:
    path = "docs/write-other-plugins.md"
    found = set()
    for block in blocks(path, "python"):
        names: dict[str, Any] = {"__name__": "page"}
        exec(block, names)
        if isinstance(kind := names.get("KIND"), Kind):
            if not issubclass(names[kind.base.partition(":")[2]], Plugin) or kind.name in kinds():
                yield f"{path}: {kind.name} is no new kind"
            continue
        for each in (value for value in names.values() if isinstance(value, type) and value.__module__ == "page"):
            if issubclass(each, Plugin):
                [of] = [name for name, one in kinds().items() if issubclass(each, one.base_class())]
                found.add(of)
                wrong = breaches(PluginRecord(of, each.__name__, "", "", ""), each)
                yield from (f"{path}: {each.__name__}: {breach}" for breach in wrong)
    yield from differ(path, found, {"scalers", "checks", "extensions", "commands"})


# ----------------------------------------------------------------------------------------------------------- job files


@check
def keys_of_the_job_file() -> Iterator[str]:
    pattern = r"^\| `([a-z_A-Z.]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \|$"
    said = re.findall(pattern, text_of("docs/job-file.md"), flags=re.MULTILINE)
    yield from differ("docs/job-file.md", said, [*key_rows(JobSpec), *key_rows(DurableOptions, "engine.options.")])


@check
def documented_job_files() -> Iterator[str]:
    """Each block of YAML with keys of a job file is a job file, together with the keys that it leaves out."""
    least = {"name": "shown", "flow": "flow.py:shown", "steps": 1, "roles": {"shown": {"use": "function"}}}
    for document in (str(path.relative_to(ROOT)) for path in DOCUMENTS):
        for block in blocks(document, "yaml"):
            keys = re.findall(r"^([a-z_]+):", block, flags=re.MULTILINE)
            if not keys or not JobSpec.model_fields.keys() >= set(keys):
                continue
            given = dict.fromkeys(re.findall(r"\$\{(\w+)", block), "1")
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(
                    "\n".join([block, *(f"{key}: {json.dumps(least[key])}" for key in least if key not in keys)])
                )
                file.flush()
                try:
                    load(Path(file.name), environ=given)
                except RolemeshError as error:
                    yield f"{document}: {error}"


# ------------------------------------------------------------------------------------------------------------ examples


@check
def folders_of_examples() -> Iterator[str]:
    for folder in (path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"):
        name = f"examples/{folder.name}"
        if not (folder / "README.md").is_file():
            yield f"{name}: it has no README.md"
        if yaml.safe_load(text_of(f"{name}/job.yaml"))["name"] != folder.name:
            yield f"{name}/job.yaml: its name is not {folder.name}"


@check
def ways_in() -> Iterator[str]:
    """Pages begin in a checkout, since no package index has rolemesh. The page of packages covers all examples."""
    first = "make install && . .venv/bin/activate   # in a checkout; else docs/install.md\n"
    pages = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/*/README.md")]
    for page in (*pages, "docs/tutorial.md", "docs/agents.md"):
        block = re.search(r"^```\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
        if not block or not block[1].startswith(first):
            yield f"{page}: its first block does not begin with {first!r}"
    command = re.compile(r"pip install (?!--upgrade rolemesh, )[^`\n]*(?<![/.\w-])rolemesh\b[^`\n]*")
    for path in DOCUMENTS:
        page = path.relative_to(ROOT).as_posix()
        if page != "docs/install.md":
            found = command.findall(path.read_text().replace("\\\n", " "))
            yield from (f"{page}: no index has it: {each}" for each in found if "--find-links" not in each)
    projects = {project["name"]: project for _, project in distributions()}
    lines = re.findall(r"^~/rolemesh-env/bin/pip install (.+)$", text_of("docs/install.md").replace("\\\n", " "), re.M)
    words = [word for line in lines for word in shlex.split(line.replace("--find-links dist", "")) if word[0] != "-"]
    there = installs(words, projects)
    yield from (f"docs/install.md: there is no {name}" for name in there if "rolemesh" in name and name not in projects)
    for page in pages:
        for name in used(yaml.safe_load(text_of(page.replace("README.md", "job.yaml")))):
            owners = {
                owner
                for owner, project in projects.items()
                if any(name in group for group in project.get("entry-points", {}).values())
            }
            if owners and not owners & there:
                yield f"docs/install.md: it does not install {name} of {page}"


@check
def gallery() -> Iterator[str]:
    shown: dict[str, str] = {}
    for section in text_of("docs/gallery.md").split("\n## ")[1:]:
        for name in re.findall(r"^<!-- flow of examples/([\w-]+)", section, re.MULTILINE):
            shown[name] = shown.get(name, "") + section
    jobs = {path.parent.name: path.read_text() for path in (ROOT / "examples").glob("*/job.yaml")}
    yield from differ("docs/gallery.md", shown, jobs)
    for name, section in shown.items():
        if f"](../examples/{name}/README.md)" not in section:
            yield f"docs/gallery.md: no link to {name}"
        pictures = re.findall(r"^!\[[^]]+\]\((images/[\w-]+\.png)\)$", section, re.MULTILINE)
        if "use: plot" in jobs.get(name, "") and not pictures:
            yield f"docs/gallery.md: no picture of {name}"
        yield from (f"docs/gallery.md: no {each}" for each in pictures if not (ROOT / "docs" / each).is_file())


@check
def tests_of_scenarios() -> Iterator[str]:
    """A test runs each command of the README's table of scenarios."""
    table = text_of("README.md").partition("| scenario | command |\n")[2].partition("\n\n")[0]
    commands = re.findall(r"\| `(rolemesh [^`]+)` \|$", table, re.MULTILINE)
    if len(set(commands)) != len(table.splitlines()) - 1:
        yield "README.md: a scenario has no command of its own"
    run: dict[str, str] = {}
    for path in [*ROOT.glob("tests/e2e/test_*.py"), *ROOT.glob("plugins/*/*/tests/test_*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.scenario":
                run[ast.literal_eval(node.args[0])] = path.read_text()
    yield from differ("README.md", commands, run)
    for command, text in run.items():  # the mark stands where the example is
        words = re.findall(r"examples/([\w-]+)/", command) or command.split()[1:2]
        yield from (f"the test of `{command}` does not use {word}" for word in words if f'"{word}"' not in text)


# -------------------------------------------------------------------------------------------------------------- tables


@check
def comparisons() -> Iterator[str]:
    """The table of comparisons names each test of the judges, and the pinned versions."""
    path = "plugins/workloads/training/README.md"
    text = text_of(path).partition("## Compared with\n")[2]
    named = re.findall(r"\| `(test_\w+\.py::test_\w+)` \|$", text.partition("\n## ")[0], re.MULTILINE)
    here = [
        f"{test.name}::{node.name}"
        for test in ROOT.glob("tests/judges/test_*.py")
        for node in ast.parse(test.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    yield from differ(path, named, here)
    pins = "".join(text_of(f"requirements/{name}.txt") for name in ("lock", "judges"))
    for name, version in re.findall(r"(TRL|transformers|peft|torch)\s(\d+\.\d+\.\d+)", text):
        if not re.search(rf"^{name.lower()}=={re.escape(version)}\b", pins, re.MULTILINE):
            yield f"{path}: {name} {version} is not pinned"


@check
def state_machines() -> Iterator[str]:
    code = [get_args(Phase), get_args(get_type_hints(Recovery)["phase"]), get_args(get_type_hints(RankRecord)["state"])]
    pictures = blocks("docs/protocol.md", "mermaid")
    if len(pictures) != len(code):
        yield f"docs/protocol.md: {len(pictures)} state machines"
    for block, states in zip(pictures, code, strict=False):
        said = {each for arrow in re.findall(r"(\w+) --> (\w+)", block.replace("[*]", "")) for each in arrow}
        yield from differ("docs/protocol.md", said, states)


@check
def targets_levels_causes_and_events() -> Iterator[str]:
    target = text_of("docs/protocol.md").partition("| target |")[2].partition("\n\n")[0]
    table, text = re.sub(r"\|[^|]*\|\n", "|\n", target), text_of("docs/fault-tolerance.md")
    yield from differ("docs/protocol.md", re.findall(r"`(\w+)`", table), TARGETS)
    levels = [name for _, each in distributions() for name in each.get("entry-points", {}).get("rolemesh.failover", ())]
    yield from differ("docs/fault-tolerance.md", re.findall(r"^\| \[`([\w-]+)`\]", text, re.MULTILINE), levels)
    causes = text_of("docs/what-to-look-at.md")
    yield from (
        f"docs/what-to-look-at.md: no row of {each}" for each in get_args(Cause) if f"| `{each}` |" not in causes
    )
    yield from differ("docs/generator/events.py", events.KINDS, events.journalled())
    yield from (f"the kit has no event {each}" for each in events.KINDS if each not in EVENTS)


@check
def rooms_and_verbs() -> Iterator[str]:
    kernel, text = ROOT / "core/rolemesh", text_of("docs/architecture.md")
    rooms = {path.stem for path in kernel.glob("*.py") if not path.stem.startswith("__")}
    rooms |= {path.name for path in kernel.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    part = text.partition("### Rooms of the kernel")[2].partition("### Rooms of the engine")[0]
    said = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", part, flags=re.MULTILINE)
    yield from differ("docs/architecture.md", said, rooms)
    commands = "plugins/commands/base"
    verbs = tomllib.loads(text_of(f"{commands}/pyproject.toml"))["project"]["entry-points"]["rolemesh.commands"]
    said = verbs_in(text_of(f"{commands}/README.md"))
    yield from (f"{commands}/README.md: no verb {verb}" for verb in sorted(verbs.keys() - said))


def verbs_in(text: str) -> set[str]:
    """Return what code spans name, as entry points of verbs: `rolemesh run --locked` is ``run.locked``."""
    spans = re.findall(r"`([^`]+)`", text)
    return {span.removeprefix("rolemesh ").replace(" --", ".").replace(" ", ".") for span in spans}


@check
def table_of_plugins() -> Iterator[str]:
    table = text_of("docs/plugins.md").partition("## What is in the box")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", table, flags=re.MULTILINE)
    for _, project in [*distributions()][1:]:  # the kernel has no plugins
        said = " ".join(what for what, _, where in rows if f"`{project['name']}`" in where)
        if not said:
            yield f"docs/plugins.md: {project['name']} has no row"
        found = project.get("entry-points", {})
        names = {name for kind, names in found.items() if kind.startswith("rolemesh.") for name in names}
        kinds = ("kinds", "doctor", "defaults", "offered", "renamed")
        inside = {name for kind in kinds for name in found.get(f"rolemesh.{kind}", ())}
        hidden = {"plan.traffic", "room"} | inside  # an option of `plan`, and an examination of `doctor`
        missing = sorted(names - hidden - verbs_in(said))
        yield from (f"docs/plugins.md: {project['name']} lacks {name}" for name in missing)


@check
def pythons() -> Iterator[str]:
    """Each distribution names the Pythons that `make interpreters` runs."""
    for pattern in ("pyproject.toml", "plugins/*/*/pyproject.toml", "examples/*/pyproject.toml"):
        for path in ROOT.glob(pattern):
            lines = ['requires-python = ">=3.11"', *(f'"Programming Language :: Python :: {each}"' for each in PYTHONS)]
            yield from (f"{path.relative_to(ROOT)}: no {line}" for line in lines if line not in path.read_text())


@check
def files_and_targets() -> Iterator[str]:
    table = text_of("CONTRIBUTING.md").partition("| file or folder | purpose |\n")[2].partition("\n\n")[0]
    named = [path for row in table.splitlines()[1:] for path in re.findall(r"`([^`]+)`", row.split("|")[1])]
    if len(named) <= 20:
        yield "CONTRIBUTING.md: the table of files is short"
    for path in named:
        if not list(ROOT.glob(re.sub(r"<[^>]+>", "*", path).rstrip("/"))):
            yield f"CONTRIBUTING.md: there is no {path}"
    text = text_of("Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    yield from differ(
        "Makefile", phony[1].split() if phony else (), re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)
    )


# ----------------------------------------------------------------------------------------------------------- documents


def missing_links(path: Path) -> list[str]:
    """Return the links of a document that lead to no file."""
    text = without_code(path.read_text())
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    return [link for link in links if not (path.parent / link.partition("#")[0]).exists()]


@check
def links_between_documents() -> Iterator[str]:
    for path in DOCUMENTS:
        yield from (f"{path.relative_to(ROOT)}: there is no {link}" for link in missing_links(path))


@check
def reading() -> Iterator[str]:
    for path in documents() if find_spec("textstat") else ():
        found = readability.measure(path.read_text())
        if not found.easy:
            yield f"{path.relative_to(ROOT)}: {found.median:g} words per sentence, reading ease {found.ease:g}"
    if (words := len(text_of("README.md").split())) > README_WORDS:
        yield f"README.md: {words} words, and may have {README_WORDS}"
    by_hand = [path for path in DOCUMENTS if not path.relative_to(ROOT).as_posix().startswith(GENERATED)]
    all_words = sum(len(without_code(path.read_text()).split()) for path in by_hand)
    if all_words > WORDS:
        yield f"all documents: {all_words:,} words, and may have {WORDS:,}"


@check
def decisions() -> Iterator[str]:
    for record in text_of("docs/decisions.md").split("\n### ")[1:]:
        if (words := len(record.partition("\n## ")[0].split())) > DECISION_WORDS:
            yield f"docs/decisions.md: {record.splitlines()[0]!r} has {words} words, and may have {DECISION_WORDS}"


@check
def generated_parts() -> Iterator[str]:
    for path, made in PARTS.items():
        if path.read_text() != made():
            yield f"{path.relative_to(ROOT)}: run `python -m docs.generator`"


@check
def api_pages() -> Iterator[str]:
    listed = [path for page in reference.PAGES.values() for path in page["names"]]
    public = {name for name in rolemesh.__all__ if not name.startswith("_")}
    for module in filter(find_spec, MODULES):
        public |= {name for name in importlib.import_module(module).__all__ if not name.endswith("_API_VERSION")}
    names = [path.rpartition(".")[2] for path in listed]
    if len(names) != len(set(names)):
        yield "docs/generator/reference.yaml: a name is there twice"
    yield from (f"docs/generator/reference.yaml: no page has {name}" for name in sorted(public - set(names)))
    texts = {page: reference.page(page) for page in reference.PAGES}
    for page, made in reference.PAGES.items():
        for path in made["names"]:
            module, _, name = path.rpartition(".")
            what = getattr(importlib.import_module(module), name)
            section = texts[page].partition(f"## `{name}`\n")[2].partition("\n## ")[0]
            for field in getattr(what, "__struct_fields__", None) or getattr(what, "model_fields", None) or ():
                if field in vars(what).get("__annotations__", {}) and f"| `{field}` |" not in section:
                    yield f"the page {page} lacks {path}.{field}"
            for method, value in vars(what).items() if isinstance(what, type) else ():
                shown = f"`{name}.{method}`" in section or f"| `{method}` |" in section
                if callable(value) and not isinstance(value, type) and not method.startswith("_") and not shown:
                    yield f"the page {page} lacks {path}.{method}"


@check
def diagrams() -> Iterator[str]:
    """Each diagram is drawn with all its words, and no box on another."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        where = path.relative_to(ROOT)
        for block in re.findall(r"^```mermaid\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            picture = drawn(block)
            shown = " ".join(re.findall(r"<text[^>]*>(.*?)</text>", picture))
            labels = [each for p in (r'\["(.*?)"\]', r'\|"(.*?)"\|', r"--> \w+: (.*)") for each in re.findall(p, block)]
            words = " ".join(labels).replace("<br>", " ").split()
            yield from (f"{where}: a picture lacks {word}" for word in words if word not in shown)
            rectangle = r'<rect x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"'
            boxes = [tuple(map(float, numbers)) for numbers in re.findall(rectangle, picture)]
            for i, (x, y, w, h) in enumerate(boxes):
                for x2, y2, w2, h2 in boxes[i + 1 :]:
                    if not (x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y):
                        yield f"{where}: two boxes of a picture overlap"


@check
def tests_for_later() -> Iterator[str]:
    yield from (f"tests/data/more.txt: there is no test {line}" for line in more.unknown(ROOT))


@check
def navigation() -> Iterator[str]:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, dict):
            return [page for part in entry.values() for page in pages(part)]
        return [page for part in entry for page in pages(part)] if isinstance(entry, list) else [str(entry)]

    nav = [{"Home": "index.md"}, *({title: []} for title in ("Examples", "Plugins"))]
    listed = pages(completed(nav, ROOT))
    expected = ["index.md"]
    expected += [f"gallery/{path.parent.name}.md" for path in ROOT.glob("examples/*/README.md")]
    expected += [f"plugins/{path.parts[-3]}/{path.parts[-2]}.md" for path in ROOT.glob("plugins/*/*/README.md")]
    yield from differ("the navigation", listed, expected)
    if len(listed) != len(set(listed)):
        yield "the navigation lists a page twice"


# ---------------------------------------------------------------------------------------------------------- benchmarks


def check_report(report: dict[str, Any], name: str) -> Iterator[str]:
    """Yield what is wrong with the structure of a benchmark's JSON, and which of its numbers do not belong together."""
    if report["name"] != name or not report["rows"] or not report["claims"]:
        yield f"{name}: no name, rows or claims"
    for entry in report["rows"] + report["claims"]:
        samples = entry["samples"]
        least = 0 if entry.get("unit") in COUNTED else math.ulp(0)  # there may be none of what is counted
        if not samples or not all(math.isfinite(sample) and sample >= least for sample in samples):
            yield f"{name}: samples {samples}"
        elif (entry["min"], entry["max"]) != (min(samples), max(samples)) or not (
            entry["min"] <= entry["median"] <= entry["max"]
        ):
            yield f"{name}: min, median and max are not those of {samples}"
    for claim in report["claims"]:
        met = {"≥": claim["median"] >= claim["bound"], "≤": claim["median"] <= claim["bound"]}
        if claim["holds"] is not met[claim["relation"]]:
            yield f"{name}: {claim} does not say whether it holds"
    if not len(report["load_before"]) == len(report["load_after"]) == 3:
        yield f"{name}: no load averages"
    if report["machine"]["cores"] < 1 or not {"rolemesh", "ray", "numpy"} <= report["machine"]["packages"].keys():
        yield f"{name}: the machine is not described"


@check
def results_of_benchmarks() -> Iterator[str]:
    """The committed results are whole, of full runs, claim ratios or counts, and the README explains them."""
    readme = text_of("benchmarks/README.md")
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        if not path.stem.startswith("dlrover"):  # it runs in an environment of its own
            importlib.import_module(f"benchmarks.{path.stem}")
    for name in NAMES:
        report = json.loads((RESULTS / f"{name}.json").read_text())
        yield from check_report(report, name)
        if report["quick"]:
            yield f"{name}: its results are of a quick run"
        units = {claim.get("unit", "×") for claim in report["claims"]} - {"×", *COUNTED}
        yield from (f"{name}: a claim in {unit}" for unit in units)
        if f"`{name}`" not in readme:
            yield f"benchmarks/README.md: it does not explain {name}"


def main() -> int:
    """Print the problems; 1 if there are any."""
    found = [problem for each in CHECKS for problem in each()]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
