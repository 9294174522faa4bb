"""Which snapshots wait for the disk or for a copy on another node, where that is slower than they come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["outlasting", "shared_by_mates"]


def outlasting(steps: Sequence[int]) -> int | None:
    """Of the `steps` that wait, the one that goes on waiting: every rank decides alike, without asking.

    A checkpoint needs the snapshots of one step from all ranks, some of which are far ahead of others. So each keeps
    the step that more powers of two divide: how ever long writing takes, and how ever far ahead ranks are, there are
    steps that outlast both in every rank. (The marks of a ruler, as in the levels of a skip list: Pugh 1990.)
    """
    return max(steps, key=_mark, default=None)


def shared_by_mates(newest: Iterable[int]) -> int:
    """The step whose snapshots the mates of a node have copied together, from the newest snapshot of each (-1: none).

    It is the newest step that all have, and -1 as long as one has none. A mate that were copied before would be a step
    behind the others from then on, and the next node would have no step of all of them.
    """
    return min(newest, default=-1)


def _mark(step: int) -> tuple[int, int]:
    done = step + 1
    return done & -done, done
