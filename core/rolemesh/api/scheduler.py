"""The base class of placement strategies. Requests and plans are in `rolemesh.placement`."""

from __future__ import annotations

from rolemesh.api.plugin import Plugin


class Scheduler(Plugin):
    """Base class of placement strategies: implement the hook `place`, and `replace` to survive the
    loss of nodes.

    One instance per job, in the driver. Mark hooks with `rolemesh.hookimpl`. They must be pure: the
    same request, cluster and plan give the same new plan.
    """
