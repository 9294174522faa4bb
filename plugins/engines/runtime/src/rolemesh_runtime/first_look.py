"""A time limit for the first look at a run's folder: a store that does not answer gets an error instead of patience."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rolemesh.errors import RolemeshError
from rolemesh_runtime.beside import Beside

__all__ = ["LIMIT_S", "first_look"]

LIMIT_S = 30.0
"""Seconds that the first look at a run's folder may take."""
T = TypeVar("T")


def first_look(where: str, look: Callable[[], T]) -> T:
    """Return what `look` returns, and raise what it raises. Raises `RolemeshError` if it takes more than `LIMIT_S`."""
    looking = Beside(look, "first look")
    looking.thread.join(LIMIT_S)
    if looking.thread.is_alive():
        what = f"the folder of the run has not answered for {LIMIT_S:g} s"
        remedy = "look whether its file system is mounted and its server answers, and then try again"
        raise RolemeshError(what, where=where, remedy=remedy)
    return looking.outcome()
