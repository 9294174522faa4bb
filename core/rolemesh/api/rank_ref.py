"""The name of a rank: its role and its number there. All components call a rank by it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["OfRank", "RankRef"]


class RankRef(NamedTuple):
    """One rank of a job. Its text is "role/rank". It is equal to the plain tuple `(role, rank)`."""

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role}/{self.rank}"

    @property
    def in_words(self) -> str:
        """The rank in a sentence: "role trainer, rank 3"."""
        return f"role {self.role}, rank {self.rank}"


class OfRank(msgspec.Struct, frozen=True):
    """A record about one rank."""

    role: str
    rank: int

    @property
    def ref(self) -> RankRef:
        """The name of the rank."""
        # RankRef(...) takes twice as long, and the master names all ranks of each report.
        return tuple.__new__(RankRef, (self.role, self.rank))
