"""The verb ``rolemesh sql``. Its code is imported only when the verb is typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command
from rolemesh.errors import PluginError

__all__ = ["SqlVerb"]


class SqlVerb(Command):
    """`rolemesh sql`."""

    help: ClassVar[str] = "Query a run with SQL: where the time went, failures, metrics, rows."
    group: ClassVar[str] = "Look at jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb. Raises PluginError without DuckDB, which the extra `sql` brings."""
        try:
            from rolemesh_queries.command import command
        except ModuleNotFoundError as error:
            if error.name != "duckdb":
                raise
            remedy = "pip install 'rolemesh-observe[sql]'"
            raise PluginError("rolemesh sql needs duckdb", kind="missing", remedy=remedy) from None
        return command
