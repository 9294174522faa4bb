"""The verbs, as commands. Their code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["DebugVerb", "ReplayVerb"]


class DebugVerb(Command):
    """`rolemesh debug`."""

    help: ClassVar[str] = "Show the stacks and the memory of a rank."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        from rolemesh_debug.debug_command import command

        return command


class ReplayVerb(Command):
    """`rolemesh replay-op`."""

    help: ClassVar[str] = "Run an operator that failed once more, alone, with its saved inputs."
    group: ClassVar[str] = "Use what jobs leave"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        from rolemesh_debug.replay_command import command

        return command
