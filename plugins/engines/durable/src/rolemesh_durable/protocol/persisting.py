"""Which snapshots wait for the disk where it is slower than they come. Pure."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["outlasting"]


def outlasting(steps: Sequence[int]) -> int | None:
    """Of the `steps` that wait, the one that goes on waiting: every rank decides alike, without asking.

    A checkpoint needs the snapshots of one step from all ranks, some of which are far ahead of others. So each keeps
    the step that more powers of two divide: how ever long writing takes, and how ever far ahead ranks are, there are
    steps that outlast both in every rank. (The marks of a ruler, as in the levels of a skip list: Pugh 1990.)
    """
    return max(steps, key=_mark, default=None)


def _mark(step: int) -> tuple[int, int]:
    done = step + 1
    return done & -done, done
