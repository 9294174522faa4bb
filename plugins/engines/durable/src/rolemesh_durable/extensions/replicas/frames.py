"""The messages between agents about copies of snapshots."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh_durable.extensions.replicas.store import Stamp

__all__ = ["DONE", "IMAGE", "OFFER", "PIECE", "REFUSED", "Offer", "RankRef", "Send", "reason", "unexpected"]

log = logging.getLogger("rolemesh_durable.agent")

OFFER, IMAGE, PIECE, DONE, REFUSED = b"offer", b"image", b"piece", b"done", b"refused"
"""Kinds of messages: a snapshot to copy; its parts; a piece of a part; the copy is done; the copy is refused now."""

REPEAT_S = 1.0
GIVE_UP_S = 10.0
PAUSE_S = 2.0
"""Seconds after a failure until the next attempt."""

Send: TypeAlias = Callable[[str, bytes, Any], None]
"""Sends a message: address, kind, and the value to encode as its body."""


class Offer(OfRank, frozen=True, array_like=True):
    """A snapshot to copy, and the agent that has it.

    `restarts` holds its rank's generations, and the step to which each went back.
    """

    step: int
    stamp: Stamp
    restarts: tuple[tuple[int, int], ...]
    address: str


def reason(error: Exception) -> str:
    """Return why something cannot be copied; log unexpected errors."""
    if not isinstance(error, OSError):
        unexpected(error)
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def unexpected(error: Exception) -> None:
    """Log an error. The affected copy is tried again."""
    log.warning("copying snapshots goes on after an error", exc_info=error)
