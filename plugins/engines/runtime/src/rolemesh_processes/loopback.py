"""The address at which processes of one machine reach each other."""

from __future__ import annotations

import socket

__all__ = ["loopback"]


def loopback() -> str:
    """Return 127.0.0.1, or ::1 on a machine that has IPv6 only."""
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
    except OSError:
        return "::1"
    return "127.0.0.1"
