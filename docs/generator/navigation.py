"""The parts of the site's navigation that the repository gives: examples and plugins.

`mkdocs.yml` lists the other pages. mkdocs fails for a page that no list has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["completed", "examples", "plugins"]

SHOWN = re.compile(
    r"^## (?P<title>.+)$(?:(?!^## ).*\n)*?.*\[More\]\(\.\./examples/(?P<name>[^/]+)/README\.md\)", re.MULTILINE
)
GROUPS = ("agents", "workloads", "sources", "schedulers", "failover", "scalers", "observe", "checks", "commands")

Entry = dict[str, Any] | str


def completed(nav: Sequence[Entry], root: Path) -> list[Entry]:
    """Return `nav` of `mkdocs.yml`; "Examples" and "Plugins" go on with the pages that `root` holds."""
    made = {"Examples": examples, "Plugins": plugins}
    whole: list[Entry] = []
    for entry in nav:
        title, pages = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        whole.append({title: [*pages, *made[title](root)]} if title in made else entry)
    return whole


def examples(root: Path) -> list[Entry]:
    """Return a page per example: those of the gallery under its headings and in its order, then others by name."""
    titles = {found["name"]: found["title"] for found in SHOWN.finditer(_text(root / "docs/gallery.md"))}
    there = [path.parent.name for path in sorted(root.glob("examples/*/README.md"))]
    order = [name for name in titles if name in there] + [name for name in there if name not in titles]
    return [{titles.get(name, name): f"gallery/{name}.md"} for name in order]


def plugins(root: Path) -> list[Entry]:
    """Return a section per folder, with a page per distribution; folders that `GROUPS` lacks come last."""
    groups: dict[str, list[Entry]] = {name: [] for name in GROUPS}
    for path in sorted(root.glob("plugins/*/*/README.md")):
        group, name = path.parts[-3:-1]
        groups.setdefault(group, []).append({name: f"plugins/{group}/{name}.md"})
    return [{group.capitalize(): pages} for group, pages in groups.items() if pages]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
