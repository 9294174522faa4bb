"""Importing a plugin: in the driver through stevedore, with checks; elsewhere exactly what the driver has resolved."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from typing import Any

from stevedore.driver import DriverManager

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import PluginError
from rolemesh.graph.flow import place_of_error
from rolemesh.kinds import kind_named
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.lock import check_content

_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_checked: set[PluginRecord] = set()
"""Plugins that are what the driver resolved: of a process whose forks need not look again."""


class _OneEntryPoint(DriverManager):  # type: ignore[misc]
    """stevedore's driver for one known entry point.

    stevedore would list the group again, from a cache on disk that may be older than the last installation and without
    the distributions' names; the record's own entry point leaves it nothing to choose.
    """

    def __init__(self, point: EntryPoint) -> None:
        self._point = point
        super().__init__(point.group, point.name)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._point]


def load(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import the plugin's class and check that it fits this kernel.

    Raises `PluginError` naming distribution, version, cause and remedy: it does not import, is not what the
    distribution declares now, was written for a newer API, has the wrong base class or no pydantic `Options`.
    """
    found = load_exact(record, where)
    for why, remedy in breaches(record, found):
        raise PluginError(f"{record.what} {why}", where=where, remedy=remedy)
    return found


def load_exact(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import exactly the record's class: enough where the driver has checked it (agents, ranks, a new master).

    Raises `PluginError` if another version is installed here than the driver resolved, or if the import fails.
    """
    if record not in _checked:
        _check_installed(record, where)
    try:
        if not record.distribution:
            (code := ImportRef(record.target)).check()
            return code.resolve()  # type: ignore[no-any-return]
        return _OneEntryPoint(record.entry_point).extensions[0].plugin  # type: ignore[no-any-return]
    except (Exception, SystemExit) as error:
        raise _import_failed(record, error, where) from error


def check_before_forks(record: PluginRecord) -> None:
    """Look once for all processes that are forked from this one. What is wrong `load_exact` says, in those."""
    if record not in _checked:
        with suppress(PluginError):
            _check_installed(record, None)
            _checked.add(record)


def _check_installed(record: PluginRecord, where: str | None) -> None:
    point, remedy = record.entry_point, f"pip install {record.distribution}=={record.version} on every node"
    if not record.distribution:
        check_content(record, where)
        return
    try:
        installed = distribution(record.distribution)
    except PackageNotFoundError:
        raise PluginError(f"{record.what} is not installed here", where=where, remedy=remedy) from None
    resolved = f"{record.distribution} {record.version}"
    if (version := _version(installed)) != record.version:
        who = f"the {kind_named(record.kind).singular} {record.name!r}"
        what = f"{who} was resolved to {resolved}, but {version} is installed here"
        raise PluginError(what, where=where, remedy=remedy)
    check_content(record, where)
    declared = {(each.group, each.name, each.value.partition("[")[0].strip()) for each in installed.entry_points}
    if (point.group, record.name, record.target) not in declared:
        what = f"{resolved} does not declare {record.name} = {record.target} in {point.group} any more"
        raise PluginError(what, where=where, remedy=f"pip install --force-reinstall {record.distribution}")


def _version(installed: Distribution) -> str:
    """As `Distribution.version`, which takes milliseconds for what has a long description; every rank asks."""
    found = _VERSION.search(installed.read_text("METADATA") or "")
    return found[1] if found else installed.version


def _import_failed(record: PluginRecord, error: BaseException, where: str | None) -> PluginError:
    module = record.target.partition(":")[0]
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    at = f" ({place})" if (place := place_of_error(error)) else ""
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    remedy = f"pip install --force-reinstall {record.distribution}, or use another {kind_named(record.kind).singular}"
    if not record.distribution:
        remedy = "correct the file; its path is relative to the job file"
    elif missing and missing.partition(".")[0] != module.partition(".")[0]:
        remedy = f"install what provides {missing!r}, or reinstall {record.distribution} with its dependencies"
    what = f"{record.what} cannot be imported from {record.target}: {cause}{at}"
    return PluginError(what, where=where, remedy=remedy)
