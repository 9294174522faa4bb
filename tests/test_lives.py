"""The stations in the architecture name classes, methods and functions that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    ROOT / "core/rolemesh",
    *(ROOT / f"plugins/engines/{name}/src" for name in ("dataplane", "durable", "runtime")),
)


@cache
def defined() -> frozenset[str]:
    """Every class, function and `Class.method` of the kernel, the durable engine and its libraries."""
    found: set[str] = set()
    for path in (path for folder in SOURCES for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
                found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
            elif isinstance(node, ast.FunctionDef):
                found.add(node.name)
    return frozenset(found)


def test_each_station_in_the_architecture_is_in_the_code() -> None:
    tables = (ROOT / "docs/architecture.md").read_text().partition("### Where to look")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+\. .* \| (.*) \|$", tables, re.MULTILINE)
    named = [name for cell in rows for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(rows) >= 20
    assert [name for name in named if name not in defined()] == []
