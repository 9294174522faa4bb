"""What a job may run with, written down: name, distribution, version and content of each plugin, in ``job.lock.yaml``.

The content is hashed before anything of it is imported, in every process that imports it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import msgspec
import yaml

from rolemesh.errors import PluginError
from rolemesh.plugins.discovery import PluginRecord

_HEAD = "# What {job} runs with. Made by `rolemesh plugins lock {job}`, for `rolemesh run --locked`.\n"
_AGAIN = "look at what has changed, then run `rolemesh plugins lock` again"


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str
    distribution: str
    version: str
    sha256: str


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plugins of a job, each with the sha256 of its content, and the kernel's version."""

    rolemesh: str
    plugins: tuple[_Entry, ...]

    def checked(self, record: PluginRecord, where: str | None) -> PluginRecord:
        """The record with the hash that it must have, for everybody who imports it.

        Raises `PluginError` if the plugin is not in the lock, or is another one.
        """
        same = (entry for entry in self.plugins if (entry.kind, entry.name) == (record.kind, record.name))
        if (entry := next(same, None)) is None:
            raise PluginError(f"{record.what} is not in the lock", where=where, remedy=_AGAIN)
        if (entry.distribution, entry.version) != (record.distribution, record.version):
            remedy = f"pip install {entry.distribution}=={entry.version}, or {_AGAIN}"
            what = f"{record.what} is locked to {entry.distribution} {entry.version}"
            raise PluginError(what, where=where, remedy=remedy)
        check_content(found := msgspec.structs.replace(record, sha256=entry.sha256), where)
        return found

    def check_kernel(self, where: str) -> None:
        """Raise `PluginError` if this is another kernel."""
        if self.rolemesh != (here := version("rolemesh")):
            what = f"the job is locked to rolemesh {self.rolemesh}, and this is {here}"
            raise PluginError(what, where=where, remedy=f"pip install rolemesh=={self.rolemesh}, or {_AGAIN}")


def lock_file(job: Path) -> Path:
    """Where a job file's lock is: ``job.lock.yaml`` beside ``job.yaml``."""
    return job.with_suffix(".lock.yaml")


def locked(job: str, records: Iterable[PluginRecord]) -> str:
    """The text of a lock for these plugins, of the job file named `job`."""
    ordered = sorted(records, key=lambda record: (record.kind, record.name))
    entries = [_Entry(each.kind, each.name, each.distribution, each.version, content_hash(each)) for each in ordered]
    data = msgspec.to_builtins(Lock(version("rolemesh"), tuple(entries)))
    return _HEAD.format(job=job) + yaml.safe_dump(data, sort_keys=False, width=120)


def read_lock(path: Path) -> Lock:
    """Raises `PluginError` if there is none, or a damaged one."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Lock)
    except FileNotFoundError:
        what = "there is no lock"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        what = f"the lock cannot be read: {error}"
    raise PluginError(what, where=str(path), remedy="rolemesh plugins lock makes one")


def check_content(record: PluginRecord, where: str | None = None) -> None:
    """Raise `PluginError` if the record has a hash and the plugin's content here has another."""
    if record.sha256 and content_hash(record) != record.sha256:
        what = f"{record.what} has another content here than the lock says"
        raise PluginError(what, where=where, remedy=f"pip install --force-reinstall {record.distribution}, or {_AGAIN}")


def content_hash(record: PluginRecord) -> str:
    """sha256 over the names and contents of all files of the top-level package (or module) that the plugin is in; of a
    class of the job's own, of its file.

    Nothing is imported. Raises `PluginError` if there is no such package.
    """
    file, _, _ = record.target.rpartition(":")
    name = file.partition(".")[0]
    spec = importlib.util.find_spec(name) if record.distribution else None
    single = Path((spec.origin or "") if spec is not None else file)
    files: list[tuple[Path, Path]] = []
    for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
        found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
        files += [(path.relative_to(folder), path) for path in found]
    if not files and single.is_file() and (spec is not None or not record.distribution):
        files = [(Path(single.name), single)]
    if not files:
        remedy = f"pip install --force-reinstall {record.distribution}"
        raise PluginError(f"the package {name!r} of {record.what} is not here", remedy=remedy)
    digest = hashlib.sha256()
    for inside, path in files:
        name, content = inside.as_posix(), path.read_bytes()
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
