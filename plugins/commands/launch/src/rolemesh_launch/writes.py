"""Find the environment variables that a script sets before it imports torch, from its source, without running it.

Workers are forked from a process that has imported torch, so variables that torch reads at import must be set there. If
the source leaves a doubt, workers import torch themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

__all__ = ["Written", "written"]

PRELOADED = "torch"
EARLIER = ("PYTHON", "LD_", "TORCHELASTIC_", "ROLEMESH_")
"""Prefixes of variables that are read before a script begins, or that no script reads."""
LATER = {
    "CUDA_VISIBLE_DEVICES", "HOME", "PATH", "TMPDIR", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
}  # fmt: skip
"""Variables that are read later: when a process uses a device, starts another process, or connects to others."""
SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")
"""Names of variables whose values must not enter a job file. Torch reads none of them."""
READS = {"get", "items", "keys", "values", "copy"}
"""Methods of ``os.environ`` that change nothing."""
WRITERS = {"putenv", "unsetenv", "load_dotenv"}
"""Functions that set variables."""


class Written(NamedTuple):
    """`variables`: values when the script imports torch. `known`: the source shows all of them."""

    variables: Mapping[str, str]
    known: bool


class _Set(NamedTuple):
    """A variable is set; a `default` counts only if it is not set already."""

    name: str
    value: str
    default: bool = False


class _Torch(NamedTuple):
    """Torch is imported."""


class _Other(NamedTuple):
    """Another package is imported, which may import torch."""


class _Unknown(NamedTuple):
    """The script may set variables in a way that only running it would show."""


Happens: TypeAlias = _Set | _Torch | _Other | _Unknown


def written(script: Path, folder: Path, environ: Mapping[str, str]) -> Written:
    """Return the variables that `script`, and modules that it imports from beside it or from `folder`, set before torch
    is imported."""
    found: dict[str, str] = {}
    known, other = True, False
    for happens in _file(script, (script.parent, folder), set()):
        match happens:
            case _Torch():
                break
            case _Other():
                other = True
            case _Unknown():
                known = False
            case _Set(name, value, default) if not (
                name in LATER or name.startswith(EARLIER) or SECRET.search(name.upper())
            ):
                known = known and not other
                found[name] = {**environ, **found}.get(name, value) if default else value
    return Written(found if known else {}, known)


def _file(path: Path, folders: Sequence[Path], seen: set[Path]) -> Iterator[Happens]:
    if path in seen:
        return
    seen.add(path)
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    yield from _block(tree.body, (*folders, path.parent), seen)


def _block(body: Sequence[ast.stmt], folders: Sequence[Path], seen: set[Path]) -> Iterator[Happens]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from _import(statement, folders, seen)
        elif (plain := list(_plain(statement))) or not _writes(statement):
            yield from plain
        else:
            yield _Unknown()
        # Of what may run later, or not at all, neither the order nor the values are known.
        inner = [node for node in ast.walk(statement) if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in inner if not isinstance(statement, ast.Import | ast.ImportFrom) else ():
            for happens in _import(node, folders, seen):
                if isinstance(happens, _Torch) and isinstance(statement, ast.If | ast.Try | ast.With):
                    yield happens
                elif not isinstance(happens, _Torch):
                    yield _Unknown() if isinstance(happens, _Set) else happens


def _import(node: ast.Import | ast.ImportFrom, folders: Sequence[Path], seen: set[Path]) -> Iterator[Happens]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
        names = [*([node.module] if node.module else []), *names]
        if node.module == "os" and any(alias.asname for alias in node.names if alias.name == "environ"):
            yield _Unknown()
    for name in names:
        own = [path for folder in folders for path in _paths(folder, name) if path.is_file()]
        for path in own:
            yield from _file(path, folders, seen)
        top = name.partition(".")[0]
        if top == PRELOADED:
            yield _Torch()
        elif not (own or any((folder / top).is_dir() for folder in folders)) and top not in sys.stdlib_module_names:
            yield _Other()


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    path = folder.joinpath(*name.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def _plain(statement: ast.stmt) -> Iterator[_Set]:
    """Yield the variables that a statement sets to constants, if it has no other effect."""
    match statement:
        case ast.Assign(
            targets=[ast.Subscript(value=at, slice=ast.Constant(str(name)))], value=ast.Constant(str(value))
        ):
            if _is_environ(at):
                yield _Set(name, value)
        case ast.Expr(
            ast.Call(ast.Attribute(at, "setdefault"), [ast.Constant(str(name)), ast.Constant(str(value))], [])
        ):
            if _is_environ(at):
                yield _Set(name, value, default=True)


def _writes(statement: ast.AST) -> bool:
    """Return whether a statement may change variables, because it does more with ``os.environ`` than read it."""
    parents = {child: node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    return any(_is_writer(node) or (_is_environ(node) and not _is_read(parents.get(node))) for node in parents)


def _is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _is_writer(node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and getattr(node, "attr", getattr(node, "id", "")) in WRITERS


def _is_read(parent: ast.AST | None) -> bool:
    match parent:
        case ast.Subscript(ctx=ast.Load()) | ast.Compare() | ast.Dict() | ast.keyword(arg="env"):
            return True
        case ast.Attribute(attr=method):
            return method in READS
        case ast.Call(func=ast.Name(id="dict" | "len" | "sorted" | "print")):
            return True
    return False
