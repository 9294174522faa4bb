"""JSON files that are whole and durable once they are there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from rolemesh_runtime.syncing import sync, sync_folder

__all__ = ["write_json"]


def write_json(path: Path, value: Any) -> None:
    """As `rolemesh.runs.run.write_json`, and the file is durable when this returns."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    for left in path.parent.glob(f".{path.name}.*"):
        # A writer was killed in the middle of it, or was stopped and must not go on where this one has written.
        left.unlink(missing_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
