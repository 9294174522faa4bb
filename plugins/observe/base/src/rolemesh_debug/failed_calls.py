"""Files with the inputs of operators that failed: ``<run>/failures/ROLE-RANK-step-N-OPERATOR.safetensors``.

They have the form of a rank's state (`rolemesh_checkpoint.layout`), so other tools can read their tensors. Inputs that
this form cannot express are pickled, and the file says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from rolemesh.api.batch import Shards
from rolemesh.errors import EXIT_NOT_STARTED, RolemeshError
from rolemesh_checkpoint.attempt import Writer, write_state
from rolemesh_checkpoint.layout import SnapshotError, flatten
from rolemesh_checkpoint.reading import StateFile, map_file

__all__ = ["FAILURES_DIR", "About", "FailedCall", "ReplayError", "file_name", "make_room", "read", "surplus", "write"]

FAILURES_DIR = "failures"
SUFFIX = ".safetensors"
YOUNG_S = 60.0
"""Age in seconds up to which a file does not make room for another one: failures cause others, and the first counts."""


class ReplayError(RolemeshError):
    """A saved call cannot be read, or cannot be run."""

    exit_code = EXIT_NOT_STARTED


class About(msgspec.Struct, frozen=True):
    """The call that failed.

    - `inputs`: each input in words.
    - `missing`: inputs that were not saved, with the reason.
    - `base`: the job file's folder.
    """

    job: str
    role: str
    rank: int
    world_size: int
    step: int
    operator: str
    error: str
    inputs: dict[str, str]
    missing: dict[str, str] = {}
    base: str = ""
    generation: int = 0
    version: int = 1


class FailedCall(NamedTuple):
    """A saved call: `values` by input, and `pickles` of those inputs that only a pickle can hold."""

    about: About
    values: dict[str, Any]
    pickles: dict[str, bytes]


def file_name(role: str, rank: int, step: int, operator: str) -> str:
    """Return the name of the file; a repeated failure at the same step replaces it."""
    return f"{role}-{rank}-step-{step}-{operator}{SUFFIX}"


def write(path: Path, about: About, arguments: Mapping[str, Any], max_bytes: int) -> About:
    """Write the file, with as many inputs as fit; return `about` with those that are missing. Raises `OSError`."""
    found: dict[str, dict[str, Any]] = {"values": {}, "pickles": {}, "missing": {}}
    left = max_bytes
    for name, value in arguments.items():
        kind, held = _storable(value)
        size = _size(held)
        if kind != "missing" and size > left:
            kind, held = "missing", f"it has {size / 1e6:.1f} MB; {left / 1e6:.1f} MB were left for it (max_mb)"
        elif kind != "missing":
            left -= size
        found[kind][name] = held
    about = msgspec.structs.replace(about, missing=found["missing"])
    shards = [name for name, value in found["values"].items() if isinstance(value, Shards)]
    state = {"about": msgspec.to_builtins(about), "shards": shards, **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        try:
            write_state(Writer(descriptor, lambda _: None), state, about.step, 0)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return about


def read(path: Path) -> FailedCall:
    """Return a saved call. Nothing is unpickled. Raises `ReplayError`."""
    try:
        state = StateFile(map_file(path.absolute().parent, path.name), str(path)).state()
        about = msgspec.convert(state["about"], About)
        values, pickles = dict(state["values"]), dict(state["pickles"])
        for name in state["shards"]:
            values[name] = Shards(values[name])
        if not all(isinstance(each, bytes) for each in pickles.values()):
            raise TypeError("a pickle that is no bytes")
    except OSError as error:
        raise ReplayError(
            f"the file cannot be read: {error.strerror or error}",
            where=str(path),
            remedy=f"give a file from the folder {FAILURES_DIR} of a run",
        ) from error
    except (SnapshotError, msgspec.ValidationError, LookupError, TypeError, ValueError, AttributeError) as error:
        what = error.__cause__ or error.what if isinstance(error, SnapshotError) else error
        raise ReplayError(
            f"this is no saved call, or a damaged one: {what}",
            where=str(path),
            remedy=f"give a file from the folder {FAILURES_DIR} of a run",
        ) from error
    return FailedCall(about, values, pickles)


def make_room(folder: Path, name: str, most: int, now: float) -> bool:
    """Remove the oldest files so that there are fewer than `most` besides `name`; return False if there is no room.

    `now` is in seconds since 1970. Raises `OSError`.
    """
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path.name))
    gone = surplus(found, name, most, now)
    for each in gone or ():
        (folder / each).unlink(missing_ok=True)
    return gone is not None


def surplus(files: Iterable[tuple[float, str]], name: str, most: int, now: float) -> list[str] | None:
    """Return the files that make room for `name`, oldest first; None if they are too young for that. Pure.

    `files` are the times of change, in seconds since 1970, and the names.
    """
    others = sorted(each for each in files if each[1] != name)
    gone = others[: max(0, len(others) + 1 - most)]
    return None if any(changed > now - YOUNG_S for changed, _ in gone) else [each for _, each in gone]


def _storable(value: Any) -> tuple[Literal["values", "pickles", "missing"], Any]:
    """Return where to store a value: as it is, as its pickle, or not at all, with the reason."""
    if hasattr(value, "__next__"):
        return "missing", "it is a stream, and the operator has taken its chunks"
    try:
        flatten({"value": value}, 0)
    except TypeError:
        pass
    else:
        return "values", value
    try:
        return "pickles", pickle.dumps(value)
    except Exception as error:
        return "missing", f"it cannot be pickled: {error}"


def _size(value: Any) -> int:
    flat = flatten({"value": value}, 0)
    return sum(block.nbytes for block in flat.blocks) + len(json.dumps(flat.tree))
