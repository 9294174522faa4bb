"""Plugins and clients that need not be installed, and what installs them: for messages."""

from __future__ import annotations

import shlex

from rolemesh.api.import_ref import find_module
from rolemesh.errors import PluginError
from rolemesh.kinds.installed import entry_points, how_to_install

OFFERED, RENAMED = "rolemesh.offered", "rolemesh.renamed"
"""Entry-point groups: a distribution declares there what others offer, and old names of its own.

The name is ``kind.plugin``, or a kind alone for any plugin of the kind. The value is a
distribution, with ``_`` for ``-``, or an extra of one: ``schedulers.pd = rolemesh_pd``,
``engines = rolemesh:local``. In `RENAMED` it is the new name.
"""


def offered(kind: str, group: str = OFFERED) -> dict[str, str]:
    """The plugins of `kind` that distributions offer, with the requirement that installs each; or
    with the values in another `group`."""
    found = {}
    for point in entry_points():
        if point.group == group and point.name.partition(".")[0] == kind:
            distribution, _, extra = point.value.replace("_", "-").partition(":")
            requirement = f"{distribution}[{extra}]" if extra else distribution
            found[point.name.partition(".")[2]] = requirement
    return found


def how_to_get(kind: str, name: str = "") -> str:
    """The command that installs the plugin `name`, or for "" some plugin of the kind; "" if no
    distribution declares what to install."""
    wanted = offered(kind).get(name, "")
    return wanted and how_to_install(wanted.partition("[")[0], shlex.quote(wanted))


def need(kind: str, name: str, module: str) -> None:
    """Raise `PluginError` with what installs the plugin if `module`, which an extra brings, is
    missing. The module is not imported."""
    if find_module(module) is None:
        what = f"the plugin {name!r} needs the module {module!r}, which is not installed"
        raise PluginError(what, kind="missing", remedy=how_to_get(kind, name))
