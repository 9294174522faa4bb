"""Plugins that need not be installed, and what installs them: for messages."""

from __future__ import annotations

import shlex

from rolemesh.kinds.installed import entry_points, how_to_install

OFFERED = "rolemesh.offered"
"""Entry-point group: a distribution declares there what others offer.

The name is ``kind.plugin``, or a kind alone for any plugin of the kind. The value is a
distribution, with ``_`` for ``-``, or an extra of one: ``schedulers.pd = rolemesh_pd``,
``engines = rolemesh:local``.
"""


def offered(kind: str) -> dict[str, str]:
    """The plugins of `kind` that distributions offer, with the requirement that installs each."""
    found = {}
    for point in entry_points():
        if point.group == OFFERED and point.name.partition(".")[0] == kind:
            distribution, _, extra = point.value.replace("_", "-").partition(":")
            requirement = f"{distribution}[{extra}]" if extra else distribution
            found[point.name.partition(".")[2]] = requirement
    return found


def how_to_get(kind: str, name: str = "") -> str:
    """The command that installs the plugin `name`, or for "" some plugin of the kind; "" if no
    distribution declares what to install."""
    requirement = offered(kind).get(name, "")
    if not requirement:
        return ""
    return how_to_install(requirement.partition("[")[0], shlex.quote(requirement))
