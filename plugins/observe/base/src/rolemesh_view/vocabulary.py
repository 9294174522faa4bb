"""The texts of token ids, from the tokenizer of the job's model, if it is on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from rolemesh.errors import RolemeshError
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs.run import JOB_FILE
from rolemesh_facts import RunFacts

__all__ = ["vocabulary"]

FILE = "tokenizer.json"
MOST_BYTES = 100_000_000
"""Maximum size of a tokenizer's file."""


def vocabulary(facts: RunFacts) -> Callable[[int], str] | None:
    """Return a function from an id to the text of the token; None if the job's model has no tokenizer here.

    The options `model` of the job's roles name its folder. A job file of another user is not followed.
    """
    info = facts.info()
    if info is None:
        return None
    try:
        if facts.path.stat().st_uid != os.geteuid():
            return None
        job, _ = parse_yaml(facts.job_file(), JOB_FILE)
    except (OSError, RolemeshError, RecursionError):
        return None
    for model in _models(job):
        path = Path(info.base, model, FILE)
        if path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return None


def _models(job: Any) -> Iterator[str]:
    roles = job.get("roles") if isinstance(job, dict) else None
    for role in roles.values() if isinstance(roles, dict) else ():
        options = role.get("options") if isinstance(role, dict) else None
        model = options.get("model") if isinstance(options, dict) else None
        if isinstance(model, str):
            yield model


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Callable[[int], str] | None:
    try:
        from tokenizers import Tokenizer

        if path.stat().st_size > MOST_BYTES:
            return None
        tokenizer = Tokenizer.from_file(str(path))
    except Exception:  # the library is missing, or raises a plain Exception for a file that it cannot read
        return None
    return lambda number: str(tokenizer.decode([number], skip_special_tokens=False)) or str(number)
