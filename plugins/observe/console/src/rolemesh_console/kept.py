"""Describe the snapshot that a job left on disk: its folder, its size, and the command that exports it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolemesh_console.text import amount, relative

__all__ = ["export_command", "kept_lines"]


def kept_lines(result: Mapping[str, Any], run_dir: str | Path) -> list[tuple[str, str]]:
    """Return the snapshot that remains, as (heading, text) lines, from the ``result.json`` in `run_dir`."""
    lines = []
    kept = result.get("kept")
    if kept and (folder := Path(run_dir, "snapshots", Path(kept["folder"]).name)).is_dir():
        what = f"{relative(folder)}/  {amount(kept['bytes'])}, the state of {', '.join(kept['roles'])}"
        lines.append(("last snapshot", f"{what} after step {kept['step']}"))
        if kept["exports"]:
            lines.append(("to export it", export_command(run_dir)))
    if result.get("not_kept"):
        lines.append(("not kept", str(result["not_kept"])))
    return lines


def export_command(run_dir: str | Path) -> str:
    """Return the command that exports the run's newest snapshot, to run from the current folder."""
    return shlex.join([_program(), "checkpoint", "export", relative(run_dir)])


def _program() -> str:
    """Return the user's command for rolemesh: its name if the shell finds this installation by it, else its path."""
    own = Path(sys.executable).with_name("rolemesh")
    found = shutil.which("rolemesh")
    if not own.exists() or (found is not None and os.path.samefile(found, own)):
        return "rolemesh"
    return relative(own)
