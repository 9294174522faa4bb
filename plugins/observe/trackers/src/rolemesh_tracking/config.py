"""Read a run's job file as a tracker's configuration: keys with dots and plain values, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from rolemesh.errors import RolemeshError
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs.jsonl import open_regular
from rolemesh.runs.run import JOB_FILE

__all__ = ["config"]

Plain: TypeAlias = str | int | float | bool
HIDDEN = "***"
_SECRET = re.compile(
    r"token(?!s|i)|secret|passw|passphrase|credential|api_?key|access_?key|private_?key|authorization", re.I
)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
MOST = 1000
"""Maximum number of values. A job file may hold a table, and trackers refuse huge configurations."""


def config(run_dir: Path) -> dict[str, Plain]:
    """Return the job file of a run as ``roles.trainer.options.lr: 0.1``; empty if there is none, or a damaged one.

    The engine's copy has variables as they were written (``${TOKEN}``), not their values. A value below a key that
    names a secret, and a password in a URL, become ``***``.
    """
    try:
        with open_regular(run_dir / JOB_FILE) as file:
            told, _ = parse_yaml(file.read().decode(), JOB_FILE)
    except (OSError, UnicodeDecodeError, RolemeshError):
        return {}
    found: dict[str, Plain] = {}
    for name, value in _leaves(told, ""):
        if len(found) == MOST:
            break
        found[name] = value
    return found


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Plain]]:
    if isinstance(value, dict | list) and value:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            below = f"{name}.{key}" if name else str(key)
            if _SECRET.search(str(key)) and isinstance(part, str | dict | list):
                yield below, HIDDEN
            else:
                yield from _leaves(part, below)
    elif name:
        yield name, value if isinstance(value, bool | int | float) else _IN_URL.sub(HIDDEN, str(value))
