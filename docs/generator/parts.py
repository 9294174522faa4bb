"""The documents that are generated from the code, whole or in part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from docs.generator import command_line, errors, events, flows, reference

__all__ = ["PARTS", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]


def _gallery() -> str:
    return flows.with_pictures((ROOT / "docs/gallery.md").read_text())


PARTS: Mapping[Path, Callable[[], str]] = {
    ROOT / "docs/reference/cli.md": command_line.page,
    ROOT / "docs/reference/events.md": events.page,
    ROOT / "docs/gallery.md": _gallery,
    ROOT / "docs/errors.md": errors.page,
    **{ROOT / f"docs/reference/{name}.md": partial(reference.page, name) for name in reference.PAGES},
}
"""Each generated document, with what makes its present content."""
