"""What a job has left on disk, in words: where it is, how large, and the command that exports it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolemesh_durable.control.text import amount, relative

__all__ = ["export_command", "kept_lines"]


def kept_lines(result: Mapping[str, Any], run_dir: str | Path) -> list[tuple[str, str]]:
    """What the ``result.json`` in `run_dir` says of the snapshot that stays, as (heading, text)."""
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
    """The command that exports the newest snapshot of the run, as it works from the current folder."""
    return shlex.join([_program(), "checkpoint", "export", relative(run_dir)])


def _program() -> str:
    """How the user calls rolemesh: by its name, if the shell finds this one by it."""
    own = Path(sys.executable).with_name("rolemesh")
    found = shutil.which("rolemesh")
    if not own.exists() or (found is not None and os.path.samefile(found, own)):
        return "rolemesh"
    return relative(own)
