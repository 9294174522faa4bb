"""Values that take long to compute: a background thread renews them while requests get the latest one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Renewed"]

T = TypeVar("T")
FRESH_S = 3.0
"""Seconds for which a value counts as new. One that took long counts five times as long as it took."""


class Renewed(Generic[T]):
    """The latest value of `compute`, for several threads. Only the first call of `get` waits for a value."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._value: tuple[T] | None = None
        self._due = 0.0
        self._busy = threading.Lock()

    def get(self) -> T:
        """Return the latest value, and begin to renew it if it is old."""
        value = self._value
        if value is None:
            with self._busy:
                return (self._value or self._renew())[0]
        if time.monotonic() > self._due and self._busy.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True, name="renewal").start()
        return value[0]

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._busy.release()

    def _renew(self) -> tuple[T]:
        began = time.monotonic()
        self._value = value = (self._compute(),)
        ended = time.monotonic()
        self._due = ended + max(FRESH_S, 5 * (ended - began))
        return value
