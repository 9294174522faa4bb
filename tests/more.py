"""Which tests `make test` leaves to `make test-all`: those that ``tests/data/more.txt`` names get the marker `more`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

__all__ = ["is_more", "lines", "unknown"]

LIST = Path(__file__).parent / "data" / "more.txt"
BUT_THE_FIRST = "[1:]"


def lines() -> frozenset[str]:
    """Return the lines of the list without comments."""
    found = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in found if line and not line.startswith("#"))


def is_more(nodeid: str, first: bool, listed: frozenset[str]) -> bool:
    """Return whether the list names a test. `first`: it is the first case of its function."""
    test = nodeid.partition("[")[0].rpartition("/")[2]
    names = {test.rsplit("::", depth)[0] for depth in range(test.count("::") + 1)}
    return bool(names & listed) or (not first and test + BUT_THE_FIRST in listed)


def mark(items: Iterable[pytest.Item]) -> None:
    """Give each test that the list names the marker `more`."""
    listed, seen = lines(), set[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if is_more(item.nodeid, function not in seen, listed):
            item.add_marker(pytest.mark.more)
        if not item.get_closest_marker("soak"):
            seen.add(function)


def unknown(root: Path) -> Iterator[str]:
    """Yield the lines of the list that name no test below `root`. A class may have tests of the conformance kit."""
    there = set[str]()
    for path in [*root.glob("tests/**/test_*.py"), *root.glob("plugins/*/*/tests/test_*.py")]:
        there.add(path.name)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                there.add(f"{path.name}::{node.name}")
    for line in sorted(lines()):
        if line not in there and "::".join(line.removesuffix(BUT_THE_FIRST).split("::")[:2]) not in there:
            yield line
