"""The message of the master's part to the parts in the agents."""

from __future__ import annotations

import msgspec

__all__ = ["Signal"]


class Signal(msgspec.Struct, frozen=True, tag="signals.signal"):
    """When the job stops, send `number` instead of SIGTERM."""

    number: int
