"""Signal handling of a job's processes: for signals that they inherited as ignored, or that are not meant for them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeAlias

__all__ = ["REPLACED", "handle_unless_ignored", "pass_over"]

REPLACED = signal.SIGRTMAX - 6
"""The agent sends it after SIGTERM to a rank that a recovery replaces, if the rank's own code handles signals. By
default it ends the process. A rank whose code needs time for its end has to handle it."""
Handler: TypeAlias = Callable[[int, FrameType | None], Any]


def handle_unless_ignored(number: signal.Signals, handler: Handler) -> None:
    """Install `handler`. One that this process inherited as ignored (``nohup``, ``trap '' TERM``) stays ignored."""
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, handler)


def pass_over(number: signal.Signals) -> None:
    """Do nothing when the signal comes. Unlike SIG_IGN, this is not inherited by programs that this process starts."""
    handle_unless_ignored(number, _nothing)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal that is not meant for this process."""
