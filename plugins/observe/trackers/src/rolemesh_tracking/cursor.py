"""How far a tracker has got with a run: a small file in the run's folder, which a restarted master continues from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE, open_regular
from rolemesh.runs.run import write_json

__all__ = ["FOLDER", "Cursor", "read_cursor", "write_cursor"]

FOLDER = "trackers"
"""A folder in the run's folder, with a file for each tracker."""


class Cursor(msgspec.Struct):
    """The newest data that a service has.

    - `run`: the service's name for the run, "" before it has one.
    - `step`: the newest step that was sent, -1 for none.
    - `event`: the number of the newest event that was sent, 0 for none.
    """

    run: str = ""
    step: int = -1
    event: int = 0


def read_cursor(path: Path) -> Cursor:
    """Return what the file says; the start if there is none, or a damaged one."""
    try:
        with open_regular(path) as file:
            return msgspec.json.decode(file.read(), type=Cursor)
    except (OSError, *UNDECODABLE):
        return Cursor()


def write_cursor(path: Path, cursor: Cursor) -> None:
    """Replace the file. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    write_json(path, cursor)
