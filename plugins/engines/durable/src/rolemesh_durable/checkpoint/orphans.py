"""Which records of a send log are orphans: made by a generation after the step that a later one goes on from. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

__all__ = ["Restart", "is_orphan"]


class Record(Protocol):
    """What is looked at of a record."""

    @property
    def position(self) -> int:
        """Where it is in the log."""

    @property
    def generation(self) -> int:
        """The one that wrote it."""

    @property
    def step(self) -> int:
        """The step that it is of."""


class Restart(NamedTuple):
    """A generation, the step that it was restored to, and whether the log before it is a copy from another node."""

    generation: int
    resume: int
    copied: bool


def is_orphan(record: Record, restarts: Collection[Restart], whole: Collection[int]) -> bool:
    """Whether `record` is made again. What is at the positions `whole` is not: it is sent again from the log.

    But what a copy of a log has beyond its snapshot names slots that may hold something else, or not be there.
    """
    return any(
        restart.generation > record.generation
        and restart.resume < record.step
        and (restart.copied or record.position not in whole)
        for restart in restarts
    )
