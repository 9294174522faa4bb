"""The page on events: every kind that a master journals, what it means, and what it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import yaml

import rolemesh_durable
from rolemesh_testing.observers.lives import EVENTS

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
    rows = [f"| `{kind}` | {said} | {', '.join(f'`{key}`' for key in EVENTS[kind])} |" for kind, said in KINDS.items()]
    return HEAD + "\n".join(rows) + "\n"


def journalled() -> set[str]:
    """The kinds that the engine's source records."""
    return {kind for path in Path(rolemesh_durable.__file__).parent.rglob("*.py") for kind in _recorded(path)}


def _recorded(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("e.Record", "Record") and node.args:
            for kind in ast.walk(node.args[0]):
                if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                    yield kind.value
