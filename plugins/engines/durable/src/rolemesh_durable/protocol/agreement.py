"""One version of a value that the ranks of a group make together: all of them send parts of the same computation. Pure.

A rank that has all of its part in its log says so to rank 0, with the generation that made it, and shows it to nobody
before rank 0 has heard the same from all. So what anybody has seen is in every rank's log. When the group starts again
each rank computes what its state needs, and says what it has of former generations. Where all have a part of one
generation, those count. Otherwise nobody has seen any of them, unless a log is lost: whoever has an older part makes
sure of that, logs the new one in its place, and says so again. (Atomic commitment in two phases: Gray 1978, "Notes on
data base operating systems", with votes that outlive who gave them.)
"""

from __future__ import annotations

from typing import Final

__all__ = ["NOTHING", "Agreement"]

NOTHING: Final = 0
"""The vote of a rank that has nothing to send; of others it is 1 more than the generation that has made their part."""


class Agreement:
    """The side of rank 0, for a group of `world_size` ranks in `generation`."""

    def __init__(self, world_size: int, generation: int) -> None:
        self._world_size, self._present = world_size, generation + 1
        self._votes: dict[int, dict[int, int]] = {}

    def heard(self, rank: int, position: int, vote: int) -> tuple[tuple[int, bool], ...]:
        """`rank` has all of its part of the value at `position` in its log. Returns who is told what: to show it, or to
        log the part that the present generation has made, and vote again."""
        votes = self._votes.setdefault(position, {})
        votes[rank] = vote
        if len(votes) < self._world_size:
            return ()
        made = {*votes.values()} - {NOTHING}
        if len(made) <= 1 and max(made, default=NOTHING) <= self._present:
            del self._votes[position]
            return tuple((each, True) for each in range(self._world_size))
        others = [each for each, vote in votes.items() if vote not in (NOTHING, self._present)]
        for each in others:
            del votes[each]
        return tuple((each, False) for each in others)
