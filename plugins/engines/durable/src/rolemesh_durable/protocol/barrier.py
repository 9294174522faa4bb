"""The barrier before a collective call: its ranks go in together, when all of them have all that they need. Pure.

Inside a collective call a rank waits for its mates and answers nobody. If one went in while a mate still waits for its
input, and the rank that makes that input had to start again, then this rank could ask the one inside for what it has
lost, and all of them would wait for ever. At the barrier a rank waits, but answers.

Rank 0 keeps the barrier: the others tell it that they have arrived, and it lets all go at once. Who must step back
meanwhile asks, and goes in all the same if the barrier has been opened before.

Before the first call of a step the state after the step before is still there in every rank. So it is at the barrier
that the group agrees on whose snapshot it takes, where steps are short: whoever wants one says so before it arrives,
and the keeper tells all before it lets them go. Whoever goes in untold leaves that snapshot out, as all others do.
"""

from __future__ import annotations

from typing import Final

__all__ = ["AGAIN", "ARRIVE", "GO", "LEAVE", "LEFT", "NEXT", "SHOW", "TAKE", "VOTE", "WANT", "Barrier"]

ARRIVE: Final = 0
"""A rank to the keeper: it is there."""
LEAVE: Final = 1
"""A rank to the keeper: it wants to step back."""
GO: Final = 2
"""The keeper to all: everybody was there."""
LEFT: Final = 3
"""The keeper to a rank: it has stepped back in time."""
WANT: Final = 4
"""A rank to the keeper, before it arrives for a call of a later step: the group is to take the snapshot of this one.
The keeper itself may want it until it lets the group go."""
TAKE: Final = 5
"""The keeper to all: take the snapshot of this step, before a call of a later one."""
VOTE: Final = 6
"""A rank to the keeper, after a call: what it has of the value (`protocol.agreement`)."""
SHOW: Final = 7
"""The keeper to all: they may show it."""
AGAIN: Final = 8
"""The keeper to a rank: what a former generation had made of it does not count."""
NEXT: Final = 9
"""Rank 0 to all, where no barrier is kept: of which step the next snapshot is (`protocol.owing.Appointments`)."""


class Barrier:
    """The keeper's side, for a group of `world_size` ranks."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._here: dict[int, int] = {}
        self._taken = -1

    def heard(self, rank: int, kind: int, position: int) -> tuple[tuple[int, int], ...]:
        """`rank` has sent `kind` (`ARRIVE` or `LEAVE`) of the call at `position`, or `WANT` of that step: who is told
        what, as (rank, kind)."""
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
