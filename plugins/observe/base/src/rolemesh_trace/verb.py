"""The verb ``rolemesh trace``. Its code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["TraceVerb"]


class TraceVerb(Command):
    """`rolemesh trace`."""

    help: ClassVar[str] = "Write a job's record as a file for Perfetto."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        from rolemesh_trace.command import command

        return command
