"""The result of one examination of `rolemesh doctor`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Status"]

Status: TypeAlias = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """A finding.

    - `name`: groups findings, such as ``shm``.
    - `what`: the cause in one sentence.
    - `remedy`: advice, a command if there is one; "" if nothing needs to be done.
    - An ``error`` keeps jobs from running; a ``warning`` may.
    """

    name: str
    status: Status
    what: str
    remedy: str = ""
