"""The documents that are generated from the code, whole or in part, with what they should be now."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from documents import command_line, errors, flows

__all__ = ["ROOT", "parts"]

ROOT = Path(__file__).resolve().parents[1]


@cache
def parts() -> dict[Path, str]:
    """Each generated document with its present content."""
    docs = ROOT / "docs"
    return {
        docs / "reference/cli.md": command_line.page(),
        docs / "gallery.md": flows.with_pictures((docs / "gallery.md").read_text()),
        docs / "errors.md": errors.page(),
    }
