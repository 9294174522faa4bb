"""The verb ``rolemesh sql``. Its code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command

__all__ = ["SqlVerb"]


class SqlVerb(Command):
    """`rolemesh sql`."""

    help: ClassVar[str] = "Query a run with SQL: where the time went, failures, metrics, rows."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        from rolemesh_queries.command import command

        return command
