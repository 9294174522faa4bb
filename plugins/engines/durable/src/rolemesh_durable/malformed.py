"""Malformed messages: the reader of a socket drops what it cannot decode, counts it, logs it, and continues."""

from __future__ import annotations

import logging
import struct

from rolemesh.runs.jsonl import UNDECODABLE

__all__ = ["UNREADABLE", "Dropped"]

UNREADABLE = (*UNDECODABLE, struct.error, ValueError, LookupError)
"""Errors that decoding a malformed message may raise."""


class Dropped:
    """Counts the dropped messages at `place`. Not for several threads."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._log = logging.getLogger("rolemesh")
        self.count = 0

    def __call__(self, what: object) -> None:
        """Count a dropped message. The first, second, fourth, … are logged, so that a flood does not fill a disk."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            text = " ".join(str(what).split())[:200]
            self._log.warning("%d messages to %s could not be read; the last one: %s", self.count, self._place, text)
