"""Importing a plugin: in the driver through stevedore, with checks; elsewhere exactly what the driver has resolved."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from typing import Any, NoReturn

from pydantic import BaseModel
from stevedore.driver import DriverManager

from rolemesh.errors import PluginError
from rolemesh.kinds import kind_named
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.lock import check_content
from rolemesh.plugins.manager import check_hooks

__all__ = ["check_before_forks", "load", "load_exact"]

_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_checked: set[PluginRecord] = set()
"""Plugins that are what the driver resolved: of a process whose forks need not look again."""


class _OneEntryPoint(DriverManager):  # type: ignore[misc]
    """stevedore's driver for one known entry point.

    stevedore would list the group again, from a cache on disk that may be older than the last installation and without
    the distributions' names; the record's own entry point leaves it nothing to choose.
    """

    def __init__(self, record: PluginRecord, failed: Callable[..., None]) -> None:
        self._record = record
        super().__init__(record.entry_point.group, record.name, on_load_failure_callback=failed)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._record.entry_point]


def load(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import the plugin's class and check that it fits this kernel.

    Raises `PluginError` naming distribution, version, cause and remedy: it does not import, is not what the
    distribution declares now, was written for a newer API, has the wrong base class or no pydantic `Options`.
    """
    _check_installed(record, where)

    def failed(manager: Any, entry_point: EntryPoint, error: BaseException) -> NoReturn:
        raise _import_failed(record, error, where) from error

    try:
        found = _OneEntryPoint(record, failed).extensions[0].plugin
    except (SystemExit, AssertionError) as error:
        raise _import_failed(record, error, where) from error
    _check_class(record, found, where)
    return found  # type: ignore[no-any-return]


def load_exact(record: PluginRecord) -> type[Any]:
    """Import exactly the record's class, for processes that resolve nothing themselves (agents, ranks, a new master).

    Raises `PluginError` if another version is installed here than the driver resolved, or if the import fails.
    """
    if record not in _checked:
        _check_installed(record, None)
    try:
        found: type[Any] = record.entry_point.load()
    except Exception as error:
        raise _import_failed(record, error, None) from error
    return found


def check_before_forks(record: PluginRecord) -> None:
    """Look once for all processes that are forked from this one. What is wrong `load_exact` says, in those."""
    if record not in _checked:
        with suppress(PluginError):
            _check_installed(record, None)
            _checked.add(record)


def _check_installed(record: PluginRecord, where: str | None) -> None:
    try:
        installed = distribution(record.distribution)
    except PackageNotFoundError:
        raise PluginError(
            f"{record.what} is not installed here",
            where=where,
            remedy=f"pip install {record.distribution}=={record.version} on every node",
        ) from None
    version = _version(installed)
    if version != record.version:
        raise PluginError(
            f"the {kind_named(record.kind).singular} {record.name!r} was resolved to {record.distribution} "
            f"{record.version}, but {version} is installed here",
            where=where,
            remedy=f"pip install {record.distribution}=={record.version} on every node",
        )
    check_content(record, where)
    declared = {(point.group, point.name, point.value.partition("[")[0].strip()) for point in installed.entry_points}
    if (record.entry_point.group, record.name, record.target) not in declared:
        raise PluginError(
            f"{record.distribution} {record.version} does not declare {record.name} = {record.target} "
            f"in {record.entry_point.group} any more",
            where=where,
            remedy=f"pip install --force-reinstall {record.distribution}",
        )


def _version(installed: Distribution) -> str:
    """As `Distribution.version`, which takes milliseconds for what has a long description; every rank asks."""
    found = _VERSION.search(installed.read_text("METADATA") or "")
    return found[1] if found else installed.version


def _import_failed(record: PluginRecord, error: BaseException, where: str | None) -> PluginError:
    module = record.target.partition(":")[0]
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _outside(f.filename)]
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    what = f"{record.what} cannot be imported from {record.target}: {cause}{at}"
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != module.split(".")[0]:
        remedy = f"install what provides {error.name!r}, or reinstall {record.distribution} with its dependencies"
    else:
        remedy = (
            f"pip install --force-reinstall {record.distribution}, or use another {kind_named(record.kind).singular}"
        )
    return PluginError(what, where=where, remedy=remedy)


def _outside(filename: str) -> bool:
    hidden = ("/rolemesh/plugins/", "/stevedore/", "/importlib/", "<frozen importlib")
    return not any(part in filename for part in hidden)


def _check_class(record: PluginRecord, found: Any, where: str | None) -> None:
    who = record.what
    kind = kind_named(record.kind)
    base = kind.base_class()

    def refuse(why: str, remedy: str) -> NoReturn:
        raise PluginError(f"{who} {why}", where=where, remedy=remedy)

    if not isinstance(found, type):
        refuse(f"is not a class: {record.target} is a {type(found).__name__}", "let the entry point name a class")
    newest = getattr(base, "api_version", 1)
    version = getattr(found, "api_version", None)
    if isinstance(version, int) and version > newest:
        refuse(
            f"needs version {version} of the {record.kind} API; this kernel has {newest}",
            f"pip install --upgrade rolemesh, or an older {record.distribution}",
        )
    if not issubclass(found, base):
        name = base.__name__
        refuse(f"does not derive from {name}", f"write class {found.__name__}({name}), from rolemesh import {name}")
    if not isinstance(version, int):
        refuse(f"has no api_version (it is {version!r})", f"set api_version = {newest} in the class")
    options = getattr(found, "Options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        refuse("has no Options that is a pydantic model", 'add class Options(BaseModel, extra="forbid")')
    for hook in kind.required:
        if not hasattr(getattr(found, hook, None), "rolemesh_impl"):
            refuse(f"does not implement the hook {hook!r}", f"mark def {hook}(self, …) with @hookimpl")
    for why, remedy in breaches(found, base):
        refuse(why, remedy)
    check_hooks(record, found, where)
