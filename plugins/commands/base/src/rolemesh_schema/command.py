"""``rolemesh schema``: for editors that complete and check job files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

from rolemesh.api.command import Command
from rolemesh.cli.output import print_json
from rolemesh.plugins.discovery import discover
from rolemesh_schema.schema import job_schema

__all__ = ["SchemaVerb"]


class SchemaVerb(Command):
    """`rolemesh schema`."""

    help: ClassVar[str] = "Print the JSON Schema of job files, with the options of all installed plugins."
    group: ClassVar[str] = "Prepare and start jobs"

    @classmethod
    def function(cls) -> Callable[..., Any]:
        """Return the verb."""
        return schema


def schema() -> None:
    """Print the JSON Schema of job files, with the options of all installed plugins.

    Plugins that cannot be imported are left out and named on stderr.
    """
    found, notes = job_schema(discover())
    print_json(found)
    for note in notes:
        print(f"left out: {note}", file=sys.stderr)
