"""Wall time that no step of the clock changes, for durations."""

from __future__ import annotations

import time

__all__ = ["steady_time"]

_OFFSET = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the seconds since 1970, as the clock would show them had nobody set it since this process was started.

    Processes that fork from one process agree. Show the hour with `time.time`; measure durations with this.
    """
    return _OFFSET + time.monotonic()
