"""What `rolemesh doctor` says about one thing."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Status"]

Status: TypeAlias = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    `name` groups findings, such as ``shm``. `what` is the cause in one sentence. `remedy` is what to do, a command if
    there is one, "" if nothing has to be done. An ``error`` keeps jobs from running; a ``warning`` may.
    """

    name: str
    status: Status
    what: str
    remedy: str = ""
