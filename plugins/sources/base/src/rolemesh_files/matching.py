"""The files that a pattern names, as in `glob.glob` with ``recursive=True``, but each file once, and without names that
Hadoop and Arrow leave out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["matching"]


def matching(folder: Path, pattern: str) -> list[str]:
    """Paths of the regular files in `folder` that `pattern` names, relative to `folder` and sorted.

    `*`, `?` and `[…]` match within a name, and `**` matches any number of folders. A name that begins with a dot or
    with ``_``, such as Spark's ``_temporary``, matches only a part of the pattern that begins so. Links are followed; a
    link to a folder that holds it is not entered again. A file with several names is listed once: under its own name if
    the pattern names that, else under the first of its links.
    """
    names: dict[str, str] = {}
    root = os.path.realpath(folder)
    for name in sorted(set(_below(folder, tuple(Path(pattern).parts), (root,)))):
        real = os.path.realpath(folder / name)
        if os.path.isfile(real) and (real not in names or os.path.join(root, name) == real):
            names[real] = name
    return sorted(names.values())


def _below(folder: Path, parts: tuple[str, ...], inside: tuple[str, ...]) -> Iterator[str]:
    """Yield names that match `parts`, relative to `folder`. `inside` has the real paths of the enclosing folders."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from _below(folder, rest or ("*",), inside)
        rest, part = parts, "*"
    for entry in _entries(folder):
        if not fnmatchcase(entry.name, part) or (entry.name[0] in "._" and part[0] != entry.name[0]):
            continue
        if not rest:
            yield entry.name
        elif entry.is_dir() and (real := os.path.realpath(entry)) not in inside:
            for name in _below(folder / entry.name, rest, (*inside, real)):
                yield os.path.join(entry.name, name)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of `folder`; none if it is gone or cannot be read."""
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []
