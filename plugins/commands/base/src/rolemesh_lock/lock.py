"""The plugins that a job may use, in ``job.lock.yaml``: name, distribution, version and content hash of each.

A job that runs ``--locked`` refuses plugins that are missing from the lock or differ from it. Its engine checks the
content in every process that imports them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import yaml

from rolemesh.errors import PluginError
from rolemesh.kinds.installed import how_to_install, version
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.content import check_content, content_hash

_AGAIN = "look at what has changed, then run `rolemesh plugins lock` again"
_HEAD = "# What {job!r} runs with. Made by `rolemesh plugins lock`, for `rolemesh run --locked`.\n"
_NO_YAML = (ArithmeticError, AttributeError, LookupError, RecursionError, ValueError)
"""Errors of PyYAML for values that are not what their tags say, and for too many brackets."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str
    distribution: str
    version: str
    sha256: str


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The plugins of a job, each with the sha256 of its content, and the version of the kernel."""

    rolemesh: str
    plugins: tuple[_Entry, ...]

    def checked(self, record: PluginRecord, where: str | None) -> PluginRecord:
        """Return the record with the hash that its content must have, wherever it is imported.

        Raises `PluginError` if the plugin is not in the lock or differs from it.
        """
        same = (entry for entry in self.plugins if (entry.kind, entry.name) == (record.kind, record.name))
        if (entry := next(same, None)) is None:
            raise PluginError(f"{record.what} is not in the lock", kind="refused", where=where, remedy=_AGAIN)
        if (entry.distribution, entry.version) != (record.distribution, record.version):
            exactly = f"{entry.distribution}=={entry.version}"
            remedy = f"{how_to_install(entry.distribution, exactly)}, or {_AGAIN}"
            what = f"{record.what} is locked to {entry.distribution} {entry.version}"
            raise PluginError(what, kind="refused", where=where, remedy=remedy)
        check_content(found := msgspec.structs.replace(record, sha256=entry.sha256), where)
        return found

    def check_kernel(self, where: str) -> None:
        """Raise `PluginError` if this kernel has another version."""
        if self.rolemesh != (here := version("rolemesh")):
            what = f"the job is locked to rolemesh {self.rolemesh}, and this is {here}"
            remedy = f"{how_to_install('rolemesh', 'rolemesh==' + self.rolemesh)}, or {_AGAIN}"
            raise PluginError(what, kind="refused", where=where, remedy=remedy)


def lock_file(job: Path) -> Path:
    """Return the place of a job file's lock: ``job.lock.yaml`` beside ``job.yaml``."""
    return job.with_suffix(".lock.yaml")


def locked(job: str, records: Iterable[PluginRecord]) -> str:
    """Return the text of a lock for these plugins, of the job file named `job`."""
    ordered = sorted(records, key=lambda record: (record.kind, record.name))
    entries = [_Entry(each.kind, each.name, each.distribution, each.version, content_hash(each)) for each in ordered]
    data = msgspec.to_builtins(Lock(version("rolemesh"), tuple(entries)))
    return _HEAD.format(job=job) + yaml.safe_dump(data, sort_keys=False, width=120)


def read_lock(path: Path) -> Lock:
    """Read a lock. Raises `PluginError` if it is missing or damaged."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Lock)
    except FileNotFoundError:
        what = "there is no lock"
    except (OSError, yaml.YAMLError, *_NO_YAML, msgspec.ValidationError) as error:
        what = f"the lock cannot be read: {error}"
    raise PluginError(what, kind="missing", where=str(path), remedy="rolemesh plugins lock makes one")
