"""``rolemesh schema``: for editors that complete and check job files."""

from __future__ import annotations

import sys

from rolemesh.cli._output import print_json
from rolemesh.plugins.describe import job_schema
from rolemesh.plugins.discovery import discover


def command() -> None:
    """Print the JSON Schema of job files, with the options of all installed plugins.

    Plugins that cannot be imported are left out and named on stderr.
    """
    schema, notes = job_schema(discover())
    print_json(schema)
    for note in notes:
        print(f"left out: {note}", file=sys.stderr)
