"""The verb `rolemesh view`. Its code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["View"]


class View(Command):
    """`rolemesh view`."""

    help: ClassVar[str] = "Show a job in the browser: flow, time, failures, metrics, rows and logs."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the command."""
        from rolemesh_view.command import command

        return command
