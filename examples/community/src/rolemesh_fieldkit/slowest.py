"""The verb `rolemesh slowest`: it shows the roles on which a run spends its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command


class Slowest(Command):
    """The verb ``rolemesh slowest JOB``."""

    api_version: ClassVar[int] = 1
    help: ClassVar[str] = "Name the roles of a run that compute the longest."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Import the verb's function only when the user runs the verb."""
        from rolemesh_fieldkit.times import slowest

        return slowest
