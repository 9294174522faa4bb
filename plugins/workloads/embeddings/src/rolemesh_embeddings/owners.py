"""Which run and role a folder belongs to: the files of two of them would have the same names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from rolemesh.errors import RolemeshError

__all__ = ["claim"]

MARK = ".of-"


def claim(folder: Path, role: str, run: Path, resumed: Iterable[Path] = ()) -> None:
    """Make a folder, and let it belong to a role of a run, which is named by its folder.

    A run takes over the folder of a run that it has `resumed`. Raises `RolemeshError` if the folder belongs to another
    run or role, and `OSError` if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine = _mark(folder, role, run)
    for origin in resumed:
        with suppress(FileNotFoundError):  # of several runs that resume the same one, the first gets it
            _mark(folder, role, origin).rename(mine)
    _refuse_others(folder, mine)
    if not mine.exists():
        mine.touch()
        try:
            _refuse_others(folder, mine)  # one that has come at the same time
        except RolemeshError:
            mine.unlink(missing_ok=True)
            raise
    owner = f"role {role!r} of the run {run.resolve()}"
    if mine.read_text() != owner:
        beside = mine.with_name(f".{os.getpid()}{mine.name}")
        beside.write_text(owner)
        beside.rename(mine)


def _mark(folder: Path, role: str, run: Path) -> Path:
    return folder / f"{MARK}{sha256(f'{role} {run.resolve()}'.encode()).hexdigest()[:16]}"


def _refuse_others(folder: Path, mine: Path) -> None:
    for other in sorted(folder.glob(f"{MARK}*")):
        if other != mine:
            raise RolemeshError(
                f"the folder belongs to the {other.read_text() or 'role of another run'}",
                where=str(folder),
                remedy="give each role and each run a folder of its own, with the options `folder` and `export`; if "
                f"that role or run is gone and nobody resumes it, remove the file {other.name}",
            )
