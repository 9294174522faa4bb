"""The API of a placement strategy: its base class. The data that it reads and writes is in `rolemesh.placement`."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel

from rolemesh.api.workload import NoOptions

__all__ = ["SCHEDULER_API_VERSION", "Scheduler"]

SCHEDULER_API_VERSION = 1


class Scheduler:
    """Base class of placement strategies: implement the hook `place`, and `replace` to survive the loss of nodes.

    One instance per job, in the driver. Hooks are marked with `rolemesh.hookimpl` and must be pure: the same request,
    cluster and plan give the same new plan.
    """

    Options: ClassVar[type[BaseModel]] = NoOptions
    api_version: ClassVar[int] = SCHEDULER_API_VERSION

    def __init__(self, options: Any) -> None:
        self.options = options
