"""The content of a plugin, hashed before anything of it is imported, in every process that imports it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from rolemesh.errors import PluginError
from rolemesh.kinds.installed import how_to_install
from rolemesh.plugins.discovery import PluginRecord

_AGAIN = "look at what has changed, then run `rolemesh plugins lock` again"

_UNCHECKED = b"\x01\0\0\0"
"""Flags of a hash-based .pyc file that Python does not check (PEP 552)."""


def check_content(record: PluginRecord, where: str | None = None) -> None:
    """Raise `PluginError` if the record has a hash and the plugin's content here has another."""
    if record.sha256 and content_hash(record) != record.sha256:
        what = f"{record.what} has another content here than the lock says"
        raise PluginError(what, kind="refused", where=where, remedy=f"{_reinstall(record)}, or {_AGAIN}")


def content_hash(record: PluginRecord) -> str:
    """Return the sha256 over the names and contents of all files of the plugin's top-level package (or module); for a
    class of the job's own, of its file; for a package in a zip, of the zip.

    Nothing is imported. Raises `PluginError` if there is no such package.
    """
    file, _, _ = record.target.rpartition(":")
    name = file.partition(".")[0]
    spec = None if file.endswith(".py") else importlib.util.find_spec(name)
    packed = getattr(spec and spec.loader, "archive", None)  # of a module in a zip
    single = Path(packed or (spec.origin or "") if spec is not None else file)
    files: list[tuple[Path, Path]] = []
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        found = sorted(path for path in files_below(folder) if _is_source(path, record))
        files += [(path.relative_to(folder), path) for path in found]
    if not files and single.is_file():
        files = [(Path(single.name), single)]
    if not files:
        what = f"the package {name!r} of {record.what} is not here"
        raise PluginError(what, kind="missing", remedy=_reinstall(record))
    digest = hashlib.sha256()
    for inside, path in files:
        name, content = inside.as_posix(), path.read_bytes()
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below `folder`, also behind links: an import follows them. Each folder counts once."""
    seen = set[str]()
    for at, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (path for name in names if (path := Path(at, name)).is_file())


def _is_source(path: Path, record: PluginRecord) -> bool:
    """Whether the hash covers a file. Raises `PluginError` for compiled code that Python runs without its source."""
    if path.parent.name != "__pycache__":
        return True
    with path.open("rb") as file:
        if file.read(8)[4:] == _UNCHECKED:
            what = f"{record.what} has compiled code that Python does not compare with its source"
            raise PluginError(
                what, kind="refused", where=str(path), remedy=f"remove this file, or {_reinstall(record)}"
            )
    return False


def own_version(record: PluginRecord) -> str:
    """Return a hash of the content of a class of the job's own, as its version."""
    return f"sha256:{content_hash(record)[:16]}"


def _reinstall(record: PluginRecord) -> str:
    return how_to_install(record.distribution, f"--force-reinstall {record.distribution}")
