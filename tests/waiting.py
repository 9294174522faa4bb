"""How tests wait for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["HANG_S", "until"]

HANG_S = 600.0
"""Seconds after which what a test waits for does not come, however busy the machine is. After twice as many, pytest
itself ends a test (``addopts``)."""


def until(condition: Callable[[], Any], what: str | Callable[[], str] = "it", every_s: float = 0.02) -> Any:
    """Look every `every_s` seconds until `condition()` is true, and return it. `what` says what was waited for."""
    end = time.monotonic() + HANG_S
    while not (value := condition()):
        assert time.monotonic() < end, f"in {HANG_S:.0f} s there was not: {what() if callable(what) else what}"
        time.sleep(every_s)
    return value
