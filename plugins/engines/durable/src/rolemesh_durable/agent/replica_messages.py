"""What agents say to each other about copies of snapshots."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh_durable.agent.replica_store import Stamp

__all__ = ["DONE", "IMAGE", "OFFER", "PIECE", "REFUSED", "Offer", "RankRef", "Send", "reason", "unexpected"]

log = logging.getLogger("rolemesh_durable.agent")

OFFER, IMAGE, PIECE, DONE, REFUSED = b"offer", b"image", b"piece", b"done", b"refused"
"""Kinds of messages: there is a snapshot to copy; what does it consist of; a piece of a part; it has been copied; it
cannot be copied now."""

REPEAT_S = 1.0
GIVE_UP_S = 10.0
PAUSE_S = 2.0
"""After what has failed, until it is tried again."""

Send: TypeAlias = Callable[[str, bytes, Any], None]
"""Address, kind, what is encoded as the body."""


class Offer(OfRank, frozen=True, array_like=True):
    """A snapshot to copy, and where it is. `restarts`: its rank's generations, and the step each went back to."""

    step: int
    stamp: Stamp
    restarts: tuple[tuple[int, int], ...]
    address: str


def reason(error: Exception) -> str:
    """Why something cannot be copied; what should not happen is logged."""
    if not isinstance(error, OSError):
        unexpected(error)
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def unexpected(error: Exception) -> None:
    """Log it: what it has hit is tried again."""
    log.warning("copying snapshots goes on after an error", exc_info=error)
