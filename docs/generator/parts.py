"""The documents that are generated from the code, whole or in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs.generator import command_line, events, flows, hooks, reference

__all__ = ["ON_THE_SITE", "PARTS", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]


def _gallery() -> str:
    return flows.with_pictures((ROOT / "docs/gallery.md").read_text())


PARTS: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs/reference/cli.md": command_line.page,
    ROOT / "docs/gallery.md": _gallery,
}
"""Each generated document that people read in the repository, with what makes its present content."""

ON_THE_SITE: Mapping[str, Callable[[], str]] = {
    "reference/events.md": events.page,
    "reference/hooks.md": hooks.page,
    **{f"reference/{name}.md": partial(reference.page, name) for name in reference.PAGES},
}
"""Pages that are on the site only."""
