"""The API of a placement strategy: its base class. The data that it reads and writes is in
`rolemesh.placement`."""

from __future__ import annotations

from rolemesh.api.plugin import Plugin


class Scheduler(Plugin):
    """Base class of placement strategies: implement the hook `place`, and `replace` to survive the
    loss of nodes.

    One instance per job, in the driver. Hooks are marked with `rolemesh.hookimpl` and must be pure:
    the same request, cluster and plan give the same new plan.
    """
