"""Every message that the code can show as an error, found in its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Message", "classes", "messages"]

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("core/rolemesh/**/*.py", "plugins/*/*/src/**/*.py")

HELPERS: Mapping[tuple[str, str], tuple[str, int, str]] = {
    ("graph/tracer.py", "error"): ("FlowError", 0, ""),
    ("graph/routes.py", "refuse"): ("FlowError", 0, ""),
    ("plugins/drivers.py", "refuse"): ("PluginError", 0, "the … "),
    ("plugins/manager.py", "_wrong"): ("PluginError", 1, "the … "),
    ("replanning.py", "_wrong"): ("PlacementError", 1, "the placement strategy … "),
    ("cli/checkpoint.py", "_refused"): ("SnapshotError", 0, ""),
    ("claims.py", "_in_use"): ("NameInUseError", 1, "a job named … "),
    ("resuming.py", "_not_started"): ("SnapshotError", 0, ""),
    ("spec/problems.py", "kind"): ("JobFileError", 0, ""),
}
"""Functions that make an error of what they are given: file and name, to class, position of the message, and what they
put before it."""

YIELDING: Mapping[tuple[str, str], str] = {
    ("replanning.py", "_problems"): "PlacementError",
    ("replanning.py", "_overcommitted"): "PlacementError",
}
"""Functions that yield messages for the helper of their file: file and name, to class."""

GAP = "…"
"""Stands for what is filled in."""


class Message(NamedTuple):
    """A message: its class, its text and its remedy with `GAP` for what is filled in, and the file that makes it."""

    kind: str
    text: str
    remedy: str
    file: str


@cache
def classes() -> dict[str, str]:
    """The classes of errors, each with the module that defines it, in the order of definition."""
    found = {"RolemeshError": "rolemesh.errors"}
    for file, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id in found for b in node.bases):
                module = file.partition("/src/")[2] or file.removeprefix("core/")
                found[node.name] = module.removesuffix(".py").replace("/", ".")
    return found


def messages() -> list[Message]:
    """All messages, each once per class, in the order of files and lines."""
    kinds = classes()
    found: dict[tuple[str, str], Message] = {}
    for file, tree in _trees().items():
        for message in _in_file(file, tree, kinds):
            found.setdefault((message.kind, message.text), message)
    return list(found.values())


@cache
def _trees() -> dict[str, ast.Module]:
    """The files that have to do with errors, by path; that of the classes first."""
    paths = sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "core/rolemesh/errors.py", *paths]}
    helpers = {short for short, _ in (*HELPERS, *YIELDING)}
    return {
        file: ast.parse(text)
        for file, text in texts.items()
        if re.search(r"\w(?:Error|Problems)\(", text) or file.removeprefix("core/rolemesh/") in helpers
    }


def _in_file(file: str, tree: ast.Module, kinds: Mapping[str, str]) -> Iterator[Message]:
    short = file.removeprefix("core/rolemesh/")
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {child for node in functions for child in ast.walk(node) if child is not node and child in functions}
    constants = _assigned(ast.Module([node for node in tree.body if isinstance(node, ast.Assign)], []))
    scopes: list[ast.AST] = [tree, *(node for node in functions if node not in inner)]
    own = {node.name: _own_remedy(node, kinds) for node in functions if (short, node.name) in HELPERS}
    for scope in scopes:
        if getattr(scope, "name", "") in own:
            continue
        names = {**constants, **_assigned(scope)}
        body = ast.walk(scope) if scope is not tree else _outside(tree, functions)
        before = 0
        for node in sorted(_sites(body), key=lambda node: node.lineno):
            known = _between(names, before, node.lineno)
            if isinstance(node, ast.Yield) and node.value is not None:
                kind = YIELDING.get((short, getattr(scope, "name", "")), "")
                if kind:
                    yield from _told(kind, node.value, None, known, file, HELPERS[short, "_wrong"][2])
            elif isinstance(node, ast.Call):
                name = _name(node)
                kind, position, head = (name, 0, "") if name in kinds else HELPERS.get((short, name), ("", 0, ""))
                if kind and len(node.args) > position:
                    remedy = next((k.value for k in node.keywords if k.arg == "remedy"), None)
                    if remedy is None and name not in kinds:
                        remedy = node.args[-1] if len(node.args) > position + 1 else own.get(name)
                    yield from _told(kind, node.args[position], remedy, known, file, head)
                    before = node.lineno


def _own_remedy(helper: ast.FunctionDef | ast.AsyncFunctionDef, kinds: Mapping[str, str]) -> ast.expr | None:
    """What a helper says about every message that it is given."""
    calls = [node for node in ast.walk(helper) if isinstance(node, ast.Call) and _name(node) in kinds]
    given = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "remedy"]
    names = _assigned(helper)
    found = given[0] if given else None
    return names.get(found.id, [found])[0] if isinstance(found, ast.Name) else found


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _sites(body: Iterable[ast.AST]) -> Iterator[ast.Call | ast.Yield]:
    return (node for node in body if isinstance(node, ast.Call | ast.Yield))


def _between(names: Mapping[str, list[ast.expr]], before: int, line: int) -> dict[str, list[ast.expr]]:
    """What names are set to since the message before; where they are not, what they were set to until then."""
    found = {}
    for name, values in names.items():
        near = [value for value in values if before <= value.lineno <= line]
        found[name] = near or [value for value in values if value.lineno <= line][-1:] or values
    return found


def _outside(tree: ast.Module, functions: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> Iterator[ast.AST]:
    within = {id(child) for function in functions for child in ast.walk(function)}
    return (node for node in ast.walk(tree) if id(node) not in within)


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """What local names are set to."""
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
    said = " or: ".join(dict.fromkeys(filter(_is_said, map(_clean, _templates(remedy, names)))))
    for clean in map(_clean, _templates(text, names)):
        if _is_said(clean):
            yield Message(kind, head + clean, said, file)


def _templates(value: ast.expr | None, names: Mapping[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression can be, with gaps for what the source alone does not say."""
    match value:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            found = [""]
            for part in parts:
                texts = _filled(part, names) if isinstance(part, ast.FormattedValue) else _templates(part, names)
                found = [head + text for head in found for text in texts]
            return found
        case ast.IfExp(body=one, orelse=other):
            return [*_templates(one, names), *_templates(other, names)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [one + other for one in _templates(left, names) for other in _templates(right, names)]
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="join"), args=[ast.List(elts=[first, *_])]):
            return _templates(first, names)
        case ast.Call(func=ast.Name(id="nearest")):
            return ["take the nearest name that there is; the message says which"]
        case ast.Name(id=name):
            inner = {key: values for key, values in names.items() if key != name}
            return [text for each in names.get(name, ()) for text in _templates(each, inner)] or [GAP]
        case _:
            return [GAP]


def _filled(part: ast.FormattedValue, names: Mapping[str, list[ast.expr]]) -> list[str]:
    """A gap, or what a name stands for where that is a text of the source and not a word that happens to be one."""
    texts = _templates(part.value, names) if part.conversion == -1 else [GAP]
    return texts if all(_is_said(text) and " " in text for text in texts) else [GAP]


def _is_said(text: str) -> bool:
    """Whether the source says something itself, and does not only pass on what it was given."""
    return re.search(r"[a-z]{2}", re.sub(r"^the |…", "", text).replace("placement strategy", "")) is not None


def _clean(text: str) -> str:
    return re.sub(r"(?:…\s?)+…", GAP, " ".join(text.split()))
