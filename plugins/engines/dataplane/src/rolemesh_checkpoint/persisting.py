"""The choice of snapshots that wait for a slow disk, or for a copy on another node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["outlasting", "shared_by_mates"]


def outlasting(steps: Sequence[int]) -> int | None:
    """Return the one of the waiting `steps` that keeps waiting. Every rank decides alike, without a message.

    A checkpoint needs the snapshots of one step from all ranks, some of which are far ahead of others. So each rank
    keeps the step that more powers of two divide. However slow writing is, and however far ahead ranks are, some steps
    then outlast the others in every rank. (The marks of a ruler, as in the levels of a skip list: Pugh 1990.)
    """
    return max(steps, key=_mark, default=None)


def shared_by_mates(newest: Iterable[int]) -> int:
    """Return the step whose snapshots the ranks of a group on a node may copy, from the newest of each (-1: none).

    It is the newest step that all of them have; -1 while one has none. If one rank's snapshot were copied earlier, that
    rank would stay a step behind the others, and the next node would have no step of all of them.
    """
    return min(newest, default=-1)


def _mark(step: int) -> tuple[int, int]:
    done = step + 1
    return done & -done, done
