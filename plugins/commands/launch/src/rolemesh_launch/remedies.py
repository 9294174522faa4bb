"""Errors of the kernel and the engine with remedies for `rolemesh launch`, which has ``--set`` and options of its own.

The original remedies name overrides of `rolemesh run`, ``name=…``. After the name of a script, such a word would be an
argument of the script.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from rolemesh.errors import Problems, RolemeshError
from rolemesh.job_file import JobSpec

__all__ = ["for_launch", "with_own_remedies"]

OWN = {
    "name": "--name",
    "engine.options.hang.after_s": "--hang-after",
    "engine.options.stop_grace_s": "--shutdown-timeout",
    "roles.worker.world_size": "--nproc-per-node",
}
"""Key of the job file → option of this command that sets it."""
_KEYS = "|".join([*map(re.escape, OWN), rf"(?:{'|'.join(JobSpec.model_fields)})(?:[.\[][^\s=:'\"]*)?"])
_SETTING = re.compile(rf"(?<![\w./:-])(['\"]?)({_KEYS})(:?=)")
_BARE = re.compile(rf"(?<![\w./:-])({'|'.join(re.escape(key) for key in OWN if '.' in key)})(?![\w.=:])")


def for_launch(remedy: str) -> str:
    """Return the remedy with options of `rolemesh launch` instead of overrides."""

    def option(found: re.Match[str]) -> str:
        quote, key, operator = found.groups()
        if key in OWN and operator == "=":
            return f"{OWN[key]} {quote}"
        return f"--set {quote}{key}{operator}"

    return _BARE.sub(lambda found: OWN[found[1]], _SETTING.sub(option, remedy))


def with_own_remedies(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap the command so that its errors have remedies for this command."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        try:
            command(**values)
        except RolemeshError as error:
            for each in error.errors if isinstance(error, Problems) else (error,):
                each.remedy = for_launch(each.remedy) if each.remedy else None
            raise

    return wrapped
