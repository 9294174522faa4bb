"""The page on events: every kind that a master journals, what it means, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from rolemesh_durable.extensions.shipped import imported
from rolemesh_durable.protocol.master import transitions

__all__ = ["KINDS", "journalled", "page"]

KINDS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("events.yaml").read_text())
HEAD = """\
# Events

<!-- Made by `python -m docs.generator` from docs/generator/events.yaml. -->

What happens to a job is journalled before anything follows from it. `rolemesh events JOB --json` prints one event a
line, `runs/NAME/events.jsonl` has the same lines, and observers get them as [`Event`](observer.md#event).

Each has `seq` (from 1, without gaps), `epoch` (which master wrote it), `time` (seconds since 1970), `kind` and `data`.
`at` is in seconds of the monotonic clock that `clock` of `job_started` or `master_recovered` names. Later versions may
add kinds and data.

| kind | | data |
| --- | --- | --- |
"""


def page() -> str:
    """The whole page, as Markdown."""
    rows = [f"| `{kind}` | {said} | {', '.join(f'`{key}`' for key in _data(kind))} |" for kind, said in KINDS.items()]
    return HEAD + "\n".join(rows) + "\n"


def journalled() -> Mapping[str, type[transitions.Transition]]:
    """Return every kind of event that a master with the shipped extensions journals."""
    records = [record for part in imported("master") for record in part.records]
    return transitions.KINDS | {str(record.__struct_config__.tag): record for record in records}


def _data(kind: str) -> tuple[str, ...]:
    return journalled()[kind].__struct_encode_fields__
