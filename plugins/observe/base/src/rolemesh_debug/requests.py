"""The requests of clients that the extension `debug` answers in the master's process: see `ControlClient.ask`."""

from __future__ import annotations

import msgspec

__all__ = ["MOST_STEPS", "NoteStacks", "ProfileRank"]

MOST_STEPS = 100
"""Maximum number of steps of one profile. The rank keeps a profile in memory until its last step."""


class ProfileRank(msgspec.Struct, frozen=True, tag=True):
    """Request a profile of the next `steps` steps of a rank. `reason` says who asks, and differs from all others."""

    role: str
    rank: int
    steps: int
    reason: str


class NoteStacks(msgspec.Struct, frozen=True, tag=True):
    """Request an event which says that somebody looks at the stacks of a rank."""

    role: str
    rank: int
    reason: str
