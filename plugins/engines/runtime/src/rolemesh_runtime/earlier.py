"""Runs that later runs of the same name have replaced. They stay in ``.earlier`` until somebody deletes them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

from rolemesh.errors import JobFileError
from rolemesh.runs.run import runs_folder
from rolemesh_runtime.claim import is_run

__all__ = ["Earlier", "clean_command", "delete", "earlier_runs", "size_of"]

_NAME = re.compile(r"(.+)-(\d{8}-\d{6}Z?)(?:-(\d+))?")


class Earlier(NamedTuple):
    """A replaced run of `job`: its folder and the size of its files."""

    job: str
    path: Path
    bytes: int


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder. Files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if not path.is_dir() else 0
        except OSError:
            continue
    return total


def earlier_runs(runs: Path, job: str | None = None, keep: int = 0) -> list[Earlier]:
    """Return the replaced runs in a runs folder, oldest first: of one job or of all, without the `keep` newest of
    each."""
    folder = runs / ".earlier"
    found: dict[str, list[tuple[str, int, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and not path.is_symlink() and is_run(path) and job in (None, match[1]):
            found.setdefault(match[1], []).append((match[2], int(match[3] or 1), path))
    chosen = [(name, path) for name, each in found.items() for *_, path in sorted(each)[: max(len(each) - keep, 0)]]
    return [Earlier(name, path, size_of(path)) for name, path in sorted(chosen)]


def clean_command(runs: Path, job: str | None = None, keep: int = 0) -> str:
    """Return the command that lists these runs, to run from the current folder."""
    words = ["rolemesh", "clean", *([job] if job else []), *(["--keep", str(keep)] if keep else [])]
    elsewhere = runs.resolve() != runs_folder(None).resolve()
    return shlex.join([*words, *(["--runs-dir", str(runs)] if elsewhere else [])])


def delete(run: Earlier) -> None:
    """Remove the folder. Raises `JobFileError` if the system refuses."""
    try:
        shutil.rmtree(run.path)
    except OSError as error:
        what = f"{error.filename} cannot be deleted: {error.strerror}"
        raise JobFileError(what, where=str(run.path), remedy="look at its owner and permissions") from error
