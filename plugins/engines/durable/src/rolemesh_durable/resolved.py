"""The import of a plugin in a process of a job: exactly the driver's choice, or an error with the reason."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import Distribution
from typing import Any

from rolemesh.errors import PluginError
from rolemesh.kinds import kind_named
from rolemesh.kinds.installed import distribution, how_to_install
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.drivers import imported
from rolemesh_durable.content import check_content

_VERSION = re.compile(r"^Version: *(\S+)", re.MULTILINE)
_checked: set[PluginRecord] = set()
"""Plugins that match the driver's choice, so that the forks of this process need not check again."""


def load_exact(record: PluginRecord, where: str | None = None) -> type[Any]:
    """Import exactly the record's class. That is enough if the driver has checked it (agents, ranks, a new master).

    Raises `PluginError` if another version is installed here than the driver resolved, or if the import fails.
    """
    if record not in _checked:
        _check_installed(record, where)
    return imported(record, where)


def check_before_forks(record: PluginRecord) -> None:
    """Check once for all forks of this process. `load_exact` raises the errors in them."""
    if record not in _checked:
        with suppress(PluginError):
            _check_installed(record, None)
            _checked.add(record)


def _check_installed(record: PluginRecord, where: str | None) -> None:
    if not record.distribution:
        check_content(record, where)
        return
    resolved, exactly = f"{record.distribution} {record.version}", f"{record.distribution}=={record.version}"
    try:
        installed = distribution(record.distribution)
    except PluginError:
        remedy = f"on every node: {how_to_install(record.distribution, exactly)}"
        raise PluginError(f"{record.what} is not installed here", kind="missing", where=where, remedy=remedy) from None
    if (version := _version(installed)) != record.version:
        who = f"the {kind_named(record.kind).singular} {record.name!r}"
        what = f"{who} was resolved to {resolved}, but {version} is installed here"
        remedy = f"on every node: {how_to_install(record.distribution, exactly)}"
        raise PluginError(what, kind="incompatible", where=where, remedy=remedy)
    check_content(record, where)
    point = record.entry_point
    # By any name: a record has the old one if the job file does.
    declared = {(each.group, each.value.partition("[")[0].strip()) for each in installed.entry_points}
    if (point.group, record.target) not in declared:
        what = f"{resolved} does not declare {record.name} = {record.target} in {point.group} any more"
        raise PluginError(
            what,
            kind="incompatible",
            where=where,
            remedy=how_to_install(record.distribution, f"--force-reinstall {record.distribution}"),
        )


def _version(installed: Distribution) -> str:
    """As `Distribution.version`, which takes milliseconds for a long description; every rank calls this."""
    found = _VERSION.search(installed.read_text("METADATA") or "")
    return found[1] if found else installed.version
