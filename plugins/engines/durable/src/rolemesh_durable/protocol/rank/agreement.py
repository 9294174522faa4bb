"""Agreement of a collective group on one version of a value that its ranks make together. Pure.

A rank that has its whole part in its log sends rank 0 a vote with the generation that made the part. It shows the part
to no consumer before rank 0 has the votes of all ranks. So everything that a consumer has seen is in every rank's log.

When the group starts again, each rank computes what its state needs, and votes with the parts of former generations
that it has. If all ranks have a part of one generation, those parts count. Otherwise no consumer has seen any of them,
unless a log is lost. A rank with an older part makes sure of that, logs the new part in its place, and votes again.
(Atomic commitment in two phases: Gray 1978, "Notes on data base operating systems", with votes that outlive their
voters.)
"""

from __future__ import annotations

from typing import Final

__all__ = ["NOTHING", "Agreement"]

NOTHING: Final = 0
"""The vote of a rank that has nothing to send. Any other vote is the generation that made the part, plus 1."""


class Agreement:
    """The side of rank 0, for a group of `world_size` ranks in `generation`."""

    def __init__(self, world_size: int, generation: int) -> None:
        self._world_size, self._present = world_size, generation + 1
        self._votes: dict[int, dict[int, int]] = {}

    def heard(self, rank: int, position: int, vote: int) -> tuple[tuple[int, bool], ...]:
        """Count the vote of a rank that has its whole part of the value at `position` in its log.

        Returns the ranks to answer, each with the answer: True to show the part, False to log the part of the present
        generation and vote again.
        """
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
