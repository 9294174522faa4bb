"""Import a plugin through stevedore, and check the imported class."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import msgspec
from stevedore.driver import DriverManager

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.graph.flow import place_of_error
from rolemesh.kinds import kind_named
from rolemesh.kinds.installed import how_to_install
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import OFFERED, PluginRecord


class _OneEntryPoint(DriverManager):  # type: ignore[misc]
    """stevedore's driver for one known entry point.

    By itself stevedore would list the group again, from a cache on disk that lacks the
    distributions' names and may be older than the last installation. Here it gets the record's own
    entry point.
    """

    def __init__(self, point: EntryPoint) -> None:
        self._point = point
        super().__init__(point.group, point.name)

    def list_entry_points(self) -> list[EntryPoint]:
        return [self._point]


def load(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import the plugin's class and check that it fits this kernel.

    Raises `PluginError` with distribution, version, cause and remedy if it cannot be imported,
    needs a newer API, has the wrong base class, or has no pydantic `Options`.
    """
    found = imported(record, where)
    newest = getattr(kind_named(record.kind).base_class(), "api_version", 1)
    version = getattr(found, "api_version", None)
    if isinstance(version, int) and version > newest:
        why = f"needs version {version} of the {record.kind} API; this kernel has {newest}"
        remedy = f"pip install --upgrade rolemesh, or an older {record.distribution}"
        what = f"{record.what} {why}"
        raise PluginError(what, kind="incompatible", where=where, remedy=remedy)
    for why, remedy in breaches(record, found):
        raise PluginError(f"{record.what} {why}", where=where, remedy=remedy)
    return found


def imported(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import the record's class without further checks. Raises `PluginError` if that fails."""
    try:
        if not record.distribution:
            (code := ImportRef(record.target)).check()
            return code.resolve()  # type: ignore[no-any-return]
        return _OneEntryPoint(record.entry_point).extensions[0].plugin  # type: ignore[no-any-return]
    except (Exception, SystemExit) as error:
        raise _import_failed(record, error, where) from error


def checked(record: PluginRecord) -> PluginRecord:
    """Return the record after importing the plugin: ``broken`` or ``incompatible``, with the error,
    if that fails."""
    try:
        if record.status in OFFERED:
            load(record)
        return record
    except RolemeshError as error:
        unfit = isinstance(error, PluginError) and error.kind == "incompatible"
        status = "incompatible" if unfit else "broken"
        return msgspec.structs.replace(record, status=status, error=str(error))


def _import_failed(record: PluginRecord, error: BaseException, where: str | None) -> PluginError:
    module = record.target.partition(":")[0]
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    at = f" ({place})" if (place := place_of_error(error)) else ""
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if not record.distribution:
        remedy = "correct it; the path of a file is relative to the job file"
    elif missing and missing.partition(".")[0] != module.partition(".")[0]:
        remedy = f"pip install {record.distribution}, or what else provides {missing!r}"
    else:
        again = how_to_install(record.distribution, f"--force-reinstall {record.distribution}")
        remedy = f"{again}, or use another {kind_named(record.kind).singular}"
    what = f"{record.what} cannot be imported from {record.target}: {cause}{at}"
    return PluginError(what, where=where, remedy=remedy)
