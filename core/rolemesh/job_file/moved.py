"""Errors for keys at the top of a job file that belong to the options of its engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolemesh.errors import JobFileError
from rolemesh.job_file.places import COMMAND_LINE, Path, dotted, flow_yaml
from rolemesh.job_file.problems import has_key

SHOWN = 60
"""Characters of a value that a remedy shows; longer values are left out."""


def moved(options: Sequence[Any], path: Path, where: str, value: Any) -> JobFileError | None:
    """Return the error for a key at `path` that belongs to the engine's `options`; None if it does
    not.

    `options` are the types of the engine's options. `where` is the place of the key. `value` is its
    value, or `...` if the remedy must not show it.
    """
    new = ("transports", *path[1:]) if path[0] == "edges" else path
    if not has_key(options, new):
        return None
    if where.startswith(f"{COMMAND_LINE}: "):
        line = f"engine.options.{new[0]}{where.removeprefix(f'{COMMAND_LINE}: {path[0]}')}"
    else:
        text = "…" if value is ... else flow_yaml(value)
        shown: Any = text if len(text) <= SHOWN else "…"
        for part in reversed(new):
            shown = f"{{{part}: {shown}}}"
        line = f"engine: {{options: {shown}}}"
    what = f"{dotted(path)} is an option of the engine"
    return JobFileError(what, where=where, remedy=f"write {line}")
