"""The user of this process, for messages. A user of a container may have a number only."""

from __future__ import annotations

import getpass
import os

__all__ = ["user_name"]


def user_name() -> str:
    """Return the name of this process's user; ``uid 12345`` for one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # Python 3.13 raises the second
        return f"uid {os.getuid()}"
