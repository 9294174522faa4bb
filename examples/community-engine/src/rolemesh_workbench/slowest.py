"""The verb `rolemesh slowest`: where the time of a run goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command


class Slowest(Command):
    """`rolemesh slowest JOB`."""

    api_version: ClassVar[int] = 1
    help: ClassVar[str] = "Name the roles of a run that compute the longest."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """What it does is imported when the verb is typed."""
        from rolemesh_workbench.times import slowest

        return slowest
