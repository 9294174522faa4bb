"""The request to stop a job with a signal."""

from __future__ import annotations

import msgspec

__all__ = ["SignalJob"]


class SignalJob(msgspec.Struct, frozen=True, tag=True):
    """Stop the job. Ranks whose own code handles signals get `number` instead of SIGTERM."""

    number: int
    reason: str
