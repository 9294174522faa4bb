"""The name of one start of a rank. The name of the rank itself is the kernel's `RankRef`."""

from __future__ import annotations

from typing import NamedTuple

from rolemesh.api.rank_ref import OfRank, RankRef

__all__ = ["OfStart", "StartRef"]


class StartRef(NamedTuple):
    """One start of a rank: the rank, and the generation with which the master started it.

    Its text is "role/rank/generation".
    """

    role: str
    rank: int
    generation: int

    def __str__(self) -> str:
        return f"{self.role}/{self.rank}/{self.generation}"

    @property
    def ref(self) -> RankRef:
        """The rank."""
        return tuple.__new__(RankRef, (self.role, self.rank))

    @classmethod
    def parse(cls, text: str) -> StartRef:
        """Return the start with this text. Raises `ValueError` if the text is malformed."""
        role, rank, generation = text.split("/")
        return cls(role, int(rank), int(generation))


class OfStart(OfRank, frozen=True):
    """A record about one start of a rank. The next start of the rank has the next generation."""

    generation: int

    @property
    def start(self) -> StartRef:
        """The name of the start."""
        return tuple.__new__(StartRef, (self.role, self.rank, self.generation))
