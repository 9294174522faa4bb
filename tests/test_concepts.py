"""The architecture's concepts stay within their budget, and each is a class or function of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = tuple(ROOT / f"plugins/engines/{name}" for name in ("dataplane/src/rolemesh_checkpoint", "durable/src"))
"""The engine, and the package with the files of its state."""
BUDGET = [("kernel", (ROOT / "core/rolemesh",), 25), ("engine", ENGINE, 40)]


def concepts(part: str) -> list[tuple[str, str]]:
    """(concept, name in the code) of the table about one part."""
    text = (ROOT / "docs/architecture.md").read_text().partition(f"### Concepts of the {part}\n")[2]
    return re.findall(
        r"^\| ([\w -]+) \| .* \| `(\w+)` \|$", text.partition("\n## ")[0].partition("\n### ")[0], re.MULTILINE
    )


@pytest.mark.parametrize(("part", "folders", "most"), BUDGET, ids=[part for part, _, _ in BUDGET])
def test_concepts_are_within_their_budget_and_in_the_code(part: str, folders: tuple[Path, ...], most: int) -> None:
    found = concepts(part)
    assert 10 < len(found) <= most
    assert len({concept for concept, _ in found}) == len(found)
    source = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    defined = set(re.findall(r"^(?:class|def) (\w+)", source, re.MULTILINE))
    assert [name for _, name in found if name not in defined] == []
