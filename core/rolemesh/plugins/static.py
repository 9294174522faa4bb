"""Check a plugin without importing it: its module exists, it can be parsed, and its imports are
installed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from rolemesh.api.import_ref import find_module, parsed, top_level_names
from rolemesh.plugins.discovery import OFFERED, PluginRecord


def looked_at(record: PluginRecord) -> PluginRecord:
    """Return the record; its status is ``broken``, with the cause, if the import would certainly
    fail.

    Errors that the code raises when it runs are only found by importing it.
    """
    if record.status not in OFFERED:
        return record
    error = _error(record)
    return msgspec.structs.replace(record, status="broken", error=error) if error else record


def attribute(record: PluginRecord, name: str) -> str:
    """Return the string that the class body of the plugin assigns to `name`; "" if its source has
    none."""
    module, _, attr = record.target.partition(":")
    spec = find_module(module)
    with suppress(OSError, SyntaxError, ImportError, UnicodeDecodeError):
        tree = parsed(spec) if spec is not None else None
        body = tree.body if tree is not None else []
        classes = (node for node in body if isinstance(node, ast.ClassDef) and node.name == attr)
        for node in next((found.body for found in classes), []):
            names = map(ast.unparse, getattr(node, "targets", [getattr(node, "target", node)]))
            if name in names and isinstance(value := getattr(node, "value", None), ast.Constant):
                return str(value.value)
    return ""


def _error(record: PluginRecord) -> str:
    module, _, attr = record.target.partition(":")
    spec = find_module(module)
    if spec is None:
        return f"ModuleNotFoundError: No module named {module!r}"
    try:
        tree = parsed(spec)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg} ({spec.origin}:{error.lineno})"
    except (OSError, ImportError, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"
    if tree is None:
        return ""
    for name, line in _imports(tree):
        if find_module(name) is None:
            return f"ModuleNotFoundError: No module named {name!r} ({spec.origin}:{line})"
    head = attr.partition(".")[0]
    if not {head, "*", "__getattr__"} & top_level_names(tree) and not _dynamic(tree):
        return f"AttributeError: module {module!r} has no attribute {head!r}"
    return ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the top-level packages that the module imports unconditionally, with their lines."""
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for head in (name.partition(".")[0] for name in names):
            if head not in sys.stdlib_module_names and head not in sys.modules:
                yield head, node.lineno


def _dynamic(tree: ast.Module) -> bool:
    """Return whether the module may have or lack names for reasons that its source does not
    show."""
    names = {"globals", "vars", "setattr", "exec", "modules", "__dict__"}
    used = {getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(tree)} & names
    raises = any(isinstance(node, ast.Raise) for node in tree.body)
    return bool(used) or raises or any(isinstance(node, ast.Global) for node in ast.walk(tree))
