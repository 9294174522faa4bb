"""Names that a tracker accepts. Two metrics never get the same one. Pure."""

from __future__ import annotations

from zlib import crc32

__all__ = ["distinct"]


def distinct(name: str, accepted: str) -> str:
    """Return `accepted`, what a tracker accepts in place of `name`. If the two differ, it ends with ``-`` and the crc32
    of `name` in 8 digits, since another metric may have that name or lead to it."""
    return accepted if accepted == name else f"{accepted}-{crc32(name.encode('utf-8', 'surrogatepass')):08x}"
