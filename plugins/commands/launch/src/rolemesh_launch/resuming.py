"""Decide whether a script continues its previous run: the note that each run keeps, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh.runs.run import write_json
from rolemesh_durable.api.jobs import Unfinished, unfinished
from rolemesh_launch.flags import Asked
from rolemesh_runtime.claim import is_run
from rolemesh_runtime.lock import is_held

__all__ = ["NOTE_FILE", "Before", "GoingOn", "Note", "decided", "left_by"]

NOTE_FILE = "launch.json"


class Note(msgspec.Struct, frozen=True):
    """The command of a run. `script` is the sha256 of its file, "" if there is none."""

    script: str
    target: str
    how: str
    arguments: tuple[str, ...]
    folder: str
    nodes: tuple[int, int]
    per_node: int
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: Asked, file: Path, folder: Path, overrides: Sequence[str]) -> Note:
        """Return the note of a new run in `folder`."""
        script = sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        given = asked.target, asked.how, asked.arguments, str(folder), asked.nodes, asked.per_node
        return cls(script, *given, tuple(overrides))

    def write(self, run_dir: Path) -> None:
        """Write the note to the run's folder."""
        write_json(run_dir / NOTE_FILE, self)

    def differs(self, other: Note) -> list[str]:
        """Return the differences to `other`, in words."""
        words = {
            "script": "the script", "target": "the script", "how": "the script", "arguments": "its arguments",
            "folder": "the working directory", "nodes": "the number of workers", "per_node": "the number of workers",
            "overrides": "--set",
        }  # fmt: skip
        return list(dict.fromkeys(word for name, word in words.items() if getattr(self, name) != getattr(other, name)))


class Before(NamedTuple):
    """An unfinished run. `note` is None if it kept none."""

    left: Unfinished
    note: Note | None


def left_by(run_dir: Path) -> Before | None:
    """Return the unfinished run in this folder; None if there is none, it is running or done, or it left no state."""
    left = unfinished(run_dir) if is_run(run_dir) and not is_held(run_dir) else None
    if left is None:
        return None
    try:
        return Before(left, msgspec.json.decode((run_dir / NOTE_FILE).read_bytes(), type=Note))
    except (OSError, *UNDECODABLE):
        return Before(left, None)


class GoingOn(NamedTuple):
    """The run to resume, "" for none, and the message for the user."""

    reference: str = ""
    said: tuple[str, ...] = ()


def decided(resume: str, before: Before | None, note: Note) -> GoingOn:
    """Return the meaning of ``--resume`` for a run with `note`, after the run `before`. Pure."""
    if resume not in ("auto", "never"):
        return GoingOn(resume)
    if resume == "never" or before is None:
        return GoingOn()
    changed = before.note.differs(note) if before.note is not None else ["the command"]
    if changed:
        what = f"the run before was not done, but {' and '.join(changed)} changed since"
        return GoingOn(said=(f"{what}: the script begins from its beginning",))
    said = f"the run before was not done: the script goes on after its step {before.left.step} (or: --resume never)"
    return GoingOn(str(before.left.run_dir), (said,))
