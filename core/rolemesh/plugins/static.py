"""A look at a plugin without importing it: does its module exist, can it be parsed, is what it imports installed?"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import msgspec

from rolemesh.plugins.discovery import PluginRecord

__all__ = ["attribute", "looked_at"]


def looked_at(record: PluginRecord) -> PluginRecord:
    """The record, with the status ``broken`` and the cause if its import is bound to fail.

    Not every broken plugin can be told from its source: what its code raises is seen when it is imported.
    """
    if record.status not in ("available", "duplicate"):
        return record
    error = _error(record)
    return msgspec.structs.replace(record, status="broken", error=error) if error else record


def attribute(record: PluginRecord, name: str) -> str:
    """The text that the plugin's class gives `name` in its body; "" if its source does not say it."""
    module, _, attr = record.target.partition(":")
    spec = _find(module)
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8")) if spec and spec.origin else ast.Module([], [])
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
    body = next((node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == attr), [])
    for node in body:
        match node:
            case ast.AnnAssign(ast.Name(id), value=ast.Constant(text)) | ast.Assign([ast.Name(id)], ast.Constant(text)):
                if id == name:
                    return str(text)
    return ""


def _error(record: PluginRecord) -> str:
    module, _, attr = record.target.partition(":")
    spec = _find(module)
    if spec is None:
        return f"ModuleNotFoundError: No module named {module!r}"
    if not spec.origin or not spec.origin.endswith(".py"):
        return ""
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"), spec.origin)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg} ({spec.origin}:{error.lineno})"
    except (OSError, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"
    for name, line in _imports(tree):
        if _find(name) is None:
            return f"ModuleNotFoundError: No module named {name!r} ({spec.origin}:{line})"
    head = attr.partition(".")[0]
    names = _names(tree)
    if head not in names and "__getattr__" not in names and not _dynamic(tree):
        return f"AttributeError: module {module!r} has no attribute {head!r}"
    return ""


def _find(module: str) -> ModuleSpec | None:
    """`importlib.util.find_spec` without importing the parents."""
    head, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(head)
    except ValueError:  # a module that was made by hand has no spec
        spec = None
    name = head
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, folders := list(spec.submodule_search_locations))
        if spec is not None and spec.origin is None:
            # A folder without __init__.py: the list of its places asks for its parent's, which is not imported.
            spec.submodule_search_locations = [str(Path(folder, part)) for folder in folders]
    return spec


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Top-level packages that the module imports whatever happens, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        else:
            continue
        for name in names:
            head = name.partition(".")[0]
            if head not in sys.stdlib_module_names and head not in sys.modules:
                yield head, node.lineno


def _dynamic(tree: ast.Module) -> bool:
    """Whether the module may have names, or lack them, for reasons that its source does not show."""
    if any(isinstance(node, ast.Raise) for node in tree.body):
        return True
    return any(
        (isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names))
        or (isinstance(node, ast.Name) and node.id in ("globals", "vars", "setattr", "exec"))
        or (isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__"))
        for node in ast.walk(tree)
    )


def _names(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names
