"""The illustrated pages name classes, methods and functions that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("life-of-*.md"))
SOURCES = (
    ROOT / "core/rolemesh",
    *(ROOT / f"plugins/engines/{name}/src" for name in ("checkpoint", "dataplane", "durable", "runtime")),
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


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_station_of_a_page_is_in_the_code(path: Path) -> None:
    rows = re.findall(r"^\| \d+\. .* \| .* \| (.*) \|$", path.read_text(), re.MULTILINE)
    named = [name for cell in rows for name in re.findall(r"`([\w.]+)`", cell)]
    assert len(rows) >= 5
    assert [name for name in named if name not in defined()] == []


def test_a_metric_passes_at_most_ten_stations() -> None:
    stations = (
        (ROOT / "docs/life-of-a-batch.md").read_text().partition("## The metrics of the call")[2].partition("##")[0]
    )
    rows = re.findall(r"^\| (\d+)\. .* \|$", stations, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 11))


def test_the_lives_have_three_pages() -> None:
    assert [path.stem for path in PAGES] == ["life-of-a-batch", "life-of-a-failure", "life-of-a-job-file-value"]
