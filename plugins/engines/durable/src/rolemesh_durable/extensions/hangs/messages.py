"""The messages between the parts of hang detection in the master and in the agents."""

from __future__ import annotations

from rolemesh_durable.protocol.refs import OfStart

__all__ = ["Dump", "Stacks"]


class Dump(OfStart, frozen=True, tag="hangs.dump"):
    """Take the stacks of a rank's threads, and send `Stacks`."""


class Stacks(OfStart, frozen=True, tag="hangs.stacks"):
    """The output of py-spy about a rank, or the reason why there is none."""

    text: str
