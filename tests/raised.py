"""Every message that the code can show as an error, found in its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docs.generator.texts import clean, is_said, templates

__all__ = ["Message", "classes", "messages", "short"]

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("core/rolemesh/**/*.py", "plugins/*/*/src/**/*.py", "cookiecutter/hooks/*.py")

BREACHING = (
    "runtime/values",
    "runtime/items",
    "agents/contract",
    "agents/conversations/talk",
    "agents/workloads/environment",
    "agents/workloads/agent",
    "agents/workloads/tasks",
    "agents/workloads/deck",
    "agents/episodes/body",
    "agents/episodes/answers",
    "agents/tools",
)
"""Files that raise what their function `breach` makes."""

HELPERS: Mapping[tuple[str, str], tuple[str, int, str]] = {
    ("graph/tracer.py", "error"): ("FlowError", 0, ""),
    ("graph/call_site.py", "error"): ("FlowError", 0, ""),
    ("graph/routes.py", "refused"): ("FlowError", 0, ""),
    ("plugins/manager.py", "misbehaved"): ("PluginError", 1, "the … "),
    ("durable/plugin_calls.py", "misbehaved"): ("PluginError", 1, "the … "),
    ("durable/extensions/scaling/shell.py", "misbehaved"): ("PluginError", 1, "the … "),
    **{(f"{place}.py", "breach"): ("PluginError", 0, "") for place in BREACHING},
    ("placement/validation.py", "impossible"): ("PlacementError", 1, "the placement strategy … "),
    ("durable/protocol/master/replan.py", "impossible"): ("PlacementError", 1, "the placement strategy … "),
    ("jobs/checkpoint.py", "_refused"): ("SnapshotError", 0, ""),
    ("jobs/logs.py", "_unknown"): ("_NoLogError", 0, ""),
    ("runtime/claim.py", "in_use"): ("NameInUseError", 1, "a job named … "),
    ("durable/control/claim.py", "in_use"): ("NameInUseError", 1, "a job named … "),
    ("durable/control/resume.py", "_not_started"): ("SnapshotError", 0, ""),
    ("job_file/problems.py", "kind"): ("JobFileError", 0, ""),
}
"""Functions that make an error of what they are given: file, as `short` has it, and name, to class, position of the
message, and what they put before it."""

ANSWERING: Mapping[tuple[str, str], tuple[str, str]] = {
    **{
        ("placement/validation.py", check): ("PlacementError", "the placement strategy … ")
        for check in ("undone", "misplaced", "overcommitted", "forbidden")
    },
    ("plugins/static.py", "_error"): ("PluginError", "the …: "),
    ("plugins/contract.py", "breaches"): ("PluginError", "the … "),
    ("plugins/contract.py", "hook_breaches"): ("PluginError", "the … "),
}
"""Functions that yield or return messages, alone or with remedies: file and name, to class and what comes before."""

CHECKING: Mapping[str, str] = {
    "job_file/model.py": "JobFileError",
    "job_file/world_size.py": "JobFileError",
    "api/import_ref.py": "OptionsError",
    "api/workload.py": "OptionsError",
    "api/context.py": "OptionsError",
    "function/workload.py": "OptionsError",
    "graph/checks.py": "FlowError",
    "options.py": "OptionsError",
    "reward.py": "OptionsError",
}
"""Files, as `short` has them or by name only, whose `ValueError` and `TypeError` become errors of a class, since
pydantic or the tracer asks them."""

FORM = "pre_gen_project.py"
"""The file that checks the answers for `rolemesh new`: tuples that end in message and remedy."""


def short(file: str) -> str:
    """A file's path within its package, for all but the kernel's behind the package's name without ``rolemesh_``."""
    return re.sub(r"^core/rolemesh/|^plugins/\w+/[\w-]+/src/rolemesh_", "", file)


class Message(NamedTuple):
    """A message: its class, its text and its remedy with `GAP` for what is filled in, and the file that makes it."""

    kind: str
    text: str
    remedy: str
    file: str


@cache
def classes() -> dict[str, str]:
    """The classes of errors, each with the module that defines it, in the order of definition."""
    found, known = {"RolemeshError": "rolemesh.errors"}, 0
    while known < len(found):  # a class may be defined in an earlier file than its base
        known = len(found)
        for file, tree in _trees().items():
            for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
                if any(isinstance(base, ast.Name) and base.id in found for base in node.bases):
                    module = file.partition("/src/")[2] or file.removeprefix("core/")
                    found.setdefault(node.name, module.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return found


@cache
def messages() -> tuple[Message, ...]:
    """All messages, each once per class, in the order of files and lines."""
    kinds = classes()
    found: dict[tuple[str, str], Message] = {}
    for file, tree in _trees().items():
        for message in _in_file(file, tree, kinds):
            found.setdefault((message.kind, message.text), message)
    return tuple(found.values())


@cache
def _trees() -> dict[str, ast.Module]:
    """The files that have to do with errors, by path; that of the classes first."""
    paths = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "core/rolemesh/errors.py", *paths]}
    helpers = {name for name, _ in (*HELPERS, *ANSWERING)}
    return {
        file: ast.parse(text)
        for file, text in texts.items()
        if re.search(r"\w(?:Error|Lost|Problems)\(", text) or short(file) in helpers or file.endswith(FORM)
    }


def _in_file(file: str, tree: ast.Module, kinds: Mapping[str, str]) -> Iterator[Message]:
    path = short(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {child for node in functions for child in ast.walk(node) if child is not node and child in functions}
    constants = _assigned(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []))
    scopes: list[ast.AST] = [tree, *(node for node in functions if node not in inner)]
    own = {node.name: _own_remedy(node, kinds) for node in functions if (path, node.name) in HELPERS}
    for scope in scopes:
        if getattr(scope, "name", "") in own:
            continue
        names = {**constants, **_assigned(scope)}
        body = ast.walk(scope) if scope is not tree else _outside(tree, functions)
        before = 0
        for node in sorted(_sites(body), key=lambda node: node.lineno):
            known = _between(names, before, node.lineno)
            found = _message(node, path, getattr(scope, "name", ""), kinds, own)
            if found is not None:
                kind, text, remedy, start = found
                yield from _told(kind, text, remedy, known, file, start)
                before = node.lineno


def _message(
    node: ast.AST, path: str, scope: str, kinds: Mapping[str, str], own: Mapping[str, ast.expr | None]
) -> tuple[str, ast.expr, ast.expr | None, str] | None:
    """Class, text, remedy of the message that a node makes, and what is put before it; None if it makes none."""
    match node:
        case ast.Yield(value=ast.Tuple(elts=[text, remedy])) if (path, scope) in ANSWERING:
            kind, head = ANSWERING[path, scope]
            return kind, text, remedy, head
        case ast.Yield(value=text) | ast.Return(value=text) if text is not None and (path, scope) in ANSWERING:
            kind, head = ANSWERING[path, scope]
            return kind, text, None, head
        case ast.Tuple(elts=[*_, ast.JoinedStr() as text, remedy]) if path.endswith(FORM):
            return "PluginError", text, remedy, ""
        case ast.Call(args=arguments):
            name = _name(node)
            if name in ("ValueError", "TypeError") and arguments:
                checked = CHECKING.get(path) or CHECKING.get(path.rpartition("/")[2])
                return (checked, arguments[0], None, "") if checked else None
            kind, position, head = (name, 0, "") if name in kinds else HELPERS.get((path, name), ("", 0, ""))
            if not kind or len(arguments) <= position:
                return None
            given = next((keyword.value for keyword in node.keywords if keyword.arg == "remedy"), None)
            if given is None and name not in kinds:
                always = any(map(is_said, templates(own.get(name), {})))
                given = own.get(name) if always or len(arguments) == position + 1 else arguments[-1]
            return kind, arguments[position], given, head
    return None


def _own_remedy(helper: ast.FunctionDef | ast.AsyncFunctionDef, kinds: Mapping[str, str]) -> ast.expr | None:
    """Return the remedy that a helper adds to each message."""
    calls = [node for node in ast.walk(helper) if isinstance(node, ast.Call) and _name(node) in kinds]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "remedy"]
    names = _assigned(helper)
    found = given[0] if given else None
    return names.get(found.id, [found])[0] if isinstance(found, ast.Name) else found


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _sites(body: Iterable[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    return (node for node in body if isinstance(node, ast.Call | ast.Yield | ast.Return | ast.Tuple))


def _between(names: Mapping[str, list[ast.expr]], before: int, line: int) -> dict[str, list[ast.expr]]:
    """Return the values of names. An assignment since the message before wins over earlier ones."""
    found = {}
    for name, values in names.items():
        near = [value for value in values if before <= value.lineno <= line]
        found[name] = near or [value for value in values if value.lineno <= line][-1:] or values
    return found


def _outside(tree: ast.Module, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[ast.AST]:
    within = {id(child) for function in functions for child in ast.walk(function)}
    return (node for node in ast.walk(tree) if id(node) not in within)


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the values that a function assigns to local names."""
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.NamedExpr(ast.Name(id=name), value):
                names.setdefault(name, []).append(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                for target, value in zip(targets, values, strict=False):
                    if isinstance(target, ast.Name):
                        names.setdefault(target.id, []).append(value)
    return names


def _told(
    kind: str, text: ast.expr, remedy: ast.expr | None, names: Mapping[str, list[ast.expr]], file: str, head: str
) -> Iterator[Message]:
    said = " or: ".join(dict.fromkeys(filter(is_said, map(clean, templates(remedy, names)))))
    for told in map(clean, templates(text, names)):
        if is_said(told):
            yield Message(kind, head + told, said, file)
