"""The barrier before a collective call: the ranks enter together, once each of them has all of its inputs. Pure.

Inside a collective call a rank waits for the others and answers no messages. Suppose that one rank entered while
another still waits for its input, and that the producer of that input starts again. If the producer needed a value from
the rank inside, all of them would wait forever. At the barrier a rank waits, but answers.

Rank 0 is the coordinator: the others report their arrival, and it releases all of them at once. A rank that must step
back asks for it first. If the barrier is already open, it enters all the same.

Before the first call of a step, every rank still holds the state after the previous step. So a group with short steps
agrees at the barrier on whether to take that snapshot. A rank that wants it says so before it arrives, and rank 0 tells
all ranks before it releases them. Without that message, all ranks leave the snapshot out.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AGAIN", "ARRIVE", "GO", "LEAVE", "LEFT", "NEXT", "SHOW", "TAKE", "VOTE", "WANT", "Barrier"]

ARRIVE: Final = 0
"""A rank to rank 0: it has arrived."""
LEAVE: Final = 1
"""A rank to rank 0: it wants to step back."""
GO: Final = 2
"""Rank 0 to all: all ranks have arrived."""
LEFT: Final = 3
"""Rank 0 to a rank: it has stepped back in time."""
WANT: Final = 4
"""A rank to rank 0: the group is to take the snapshot of this step.

The rank sends it before it arrives for a call of a later step. Rank 0 itself may want it until it releases the group.
"""
TAKE: Final = 5
"""Rank 0 to all: take the snapshot of this step before a call of a later one."""
VOTE: Final = 6
"""A rank to rank 0 after a call: its vote on the value (`protocol.rank.agreement`)."""
SHOW: Final = 7
"""Rank 0 to all: they may show the value."""
AGAIN: Final = 8
"""Rank 0 to a rank: the part of the value that a former generation made does not count."""
NEXT: Final = 9
"""Rank 0 to all, in groups without a barrier: the step of the next snapshot (`protocol.rank.owing.Appointments`)."""


class Barrier:
    """The side of rank 0, for a group of `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._here: dict[int, int] = {}
        self._taken = -1

    def heard(self, rank: int, kind: int, position: int) -> tuple[tuple[int, int], ...]:
        """Take a message of `rank`: `ARRIVE` or `LEAVE` for the call at `position`, or `WANT` for that step.

        Returns the answers to send, as (rank, kind).
        """
        if kind == WANT:
            wanted, self._taken = position > self._taken, max(self._taken, position)
            return tuple((each, TAKE) for each in range(self._world_size) if wanted)
        if kind == LEAVE:
            if self._here.get(rank) != position:
                return ()
            del self._here[rank]
            return ((rank, LEFT),)
        self._here[rank] = position
        if len(self._here) < self._world_size or set(self._here.values()) != {position}:
            return ()
        self._here.clear()
        return tuple((each, GO) for each in range(self._world_size))
