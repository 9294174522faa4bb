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
    """The latest value of `compute`, for several threads. Only before there is a value does anybody wait for it.

    A value stays while `version` returns what it returned before; None stands for a version that always changes.
    """

    def __init__(self, compute: Callable[[], T], version: Callable[[], object] = lambda: None) -> None:
        self._compute, self._version = compute, version
        self._computed: object = None
        self._awaited = False
        self._value: tuple[T] | None = None
        self._due = 0.0
        self._busy = threading.Lock()
        self._ready = threading.Event()

    def begin(self) -> None:
        """Begin to renew the value in the background, if it is old or there is none."""
        due = time.monotonic() > self._due and (self._computed is None or self._version() != self._computed)
        if due and self._busy.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True, name="renewal").start()

    def get(self) -> T:
        """Return the latest value, and begin to renew it if it is old."""
        value = self._value
        if value is None:
            with self._busy:
                return (self._value or self._renew())[0]
        self.begin()
        return value[0]

    def get_within(self, seconds: float) -> T | None:
        """Return the latest value as `get` does; None if there is none. Only the first call waits for one."""
        self.begin()
        self._ready.wait(0.0 if self._awaited else seconds)
        self._awaited = True
        return self._value[0] if self._value is not None else None

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._busy.release()

    def _renew(self) -> tuple[T]:
        began, version = time.monotonic(), self._version()
        self._value = value = (self._compute(),)
        ended = time.monotonic()
        self._computed = version
        self._due = ended + max(FRESH_S, 5 * (ended - began))
        self._ready.set()
        return value
