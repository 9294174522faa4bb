"""Find the orphans in a send log: records that a generation made after the step from which a later one continued.
Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

__all__ = ["Restart", "is_orphan"]


class OrphanCandidate(Protocol):
    """The fields of a record that the decision needs."""

    @property
    def position(self) -> int:
        """Its position in the log."""

    @property
    def generation(self) -> int:
        """The generation that wrote it."""

    @property
    def step(self) -> int:
        """The step that it belongs to."""


class Restart(NamedTuple):
    """A generation, the step that it was restored to, and whether the log before it is a copy from another node."""

    generation: int
    resume: int
    copied: bool


def is_orphan(record: OrphanCandidate, restarts: Collection[Restart], whole: Collection[int]) -> bool:
    """Return whether `record` is made again. Records at the positions `whole` are not, because they are sent again from
    the log.

    In a copy of a log, records after its snapshot refer to slots that may be reused or missing.
    """
    return any(
        restart.generation > record.generation
        and restart.resume < record.step
        and (restart.copied or record.position not in whole)
        for restart in restarts
    )
