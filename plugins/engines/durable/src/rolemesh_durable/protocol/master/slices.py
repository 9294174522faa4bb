"""A slice: the part of a job's state that one extension owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

__all__ = ["SLICES", "Slice"]


class Slice(msgspec.Struct):
    """The part of a job's state that one extension owns; `JobState.slice` returns it.

    Only the extension's records change it, so the journal covers it like the rest of the state. The core writes it into
    the head of a compacted journal, and reads it from there. Every field needs a default, with which a job begins.
    """

    key: ClassVar[str] = ""
    """The slice's name in the head of a journal."""

    def convert(self, told: Callable[..., float]) -> None:
        """Replace each time by ``told(time)``, because the next master may have another clock.

        Between the masters, only their wall clocks tell the time. ``told(time, most=SECONDS)`` limits what they say.
        """


SLICES: dict[str, type[Slice]] = {}
"""The slices of all extensions that this process knows, by key."""
