"""Values that take long to compute: a background thread renews them while requests get the latest one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Renewed"]

T = TypeVar("T")
FRESH_S = 3.0
"""Seconds for which a value counts as new. One that took long counts five times as long as it took."""
OLDEST_S = 10.0
"""Maximum age in seconds of a value whose version always changes, above which it counts as out of date."""
AGAIN_S = 60.0
"""Seconds after which a value is computed again although its version has not changed."""
PATIENCE_S = 1.0
"""Seconds that `Renewed.get` waits for a newer value, if the latest one is out of date."""


class _Latest(NamedTuple, Generic[T]):
    """A value, the version before it was computed, and when that began, in seconds of the monotonic clock."""

    value: T
    version: object
    at: float


class Renewed(Generic[T]):
    """The latest value of `compute`, for several threads. The first value is waited for.

    A value stays while `version` returns what it returned before; None stands for a version that always changes. If
    that turns into another one, the latest value is out of date at once, as that of a run that has just ended.
    """

    def __init__(self, compute: Callable[[], T], version: Callable[[], object] = lambda: None) -> None:
        self._compute, self._version = compute, version
        self._latest: _Latest[T] | None = None
        self._awaited = False
        self._due = float("-inf")
        self._busy = threading.Lock()
        self._renewed = threading.Condition()

    def begin(self) -> None:
        """Begin to renew the value in the background, if it is old or there is none."""
        now, version, latest = time.monotonic(), self._version(), self._latest
        ended = version is not None and latest is not None and latest.version is None
        changed = latest is None or version is None or version != latest.version or now > latest.at + AGAIN_S
        if (ended or (changed and now > self._due)) and self._busy.acquire(blocking=False):
            threading.Thread(target=self._renew_and_release, daemon=True, name="renewal").start()

    def get(self, patience_s: float = PATIENCE_S) -> T:
        """Return the latest value; wait up to `patience_s` for a newer one if it is out of date."""
        if (latest := self._latest) is None:
            with self._busy:
                latest = self._latest or self._renew()
            self._tell()
            return latest.value
        self._wait(patience_s)
        return (self._latest or latest).value

    def get_within(self, seconds: float) -> tuple[T | None, float]:
        """Return the latest value as `get` does, and its age in seconds; 0 unless it is out of date.

        The value is None if there is none. Only the first call waits for that.
        """
        if self._latest is not None or not self._awaited:
            self._wait(seconds)
        else:
            self.begin()
        self._awaited = True
        return (latest.value, self._age(latest)) if (latest := self._latest) is not None else (None, 0.0)

    def _age(self, latest: _Latest[T]) -> float:
        """Return the seconds since a value was computed, if it is out of date; 0 if it is not."""
        version, age = self._version(), time.monotonic() - latest.at
        old = age > OLDEST_S if version is None else version != latest.version
        return age if old else 0.0

    def _wait(self, seconds: float) -> None:
        """Wait until the value is there and not out of date, for `seconds` at most, and only while it is renewed."""
        until = time.monotonic() + seconds
        self.begin()
        with self._renewed:
            while self._busy.locked() and (self._latest is None or self._age(self._latest)):
                if (left := until - time.monotonic()) <= 0:
                    return
                self._renewed.wait(left)
                self.begin()

    def _renew_and_release(self) -> None:
        try:
            self._renew()
        finally:
            self._busy.release()
            self._tell()

    def _tell(self) -> None:
        with self._renewed:
            self._renewed.notify_all()

    def _renew(self) -> _Latest[T]:
        began, version = time.monotonic(), self._version()
        self._latest = latest = _Latest(self._compute(), version, began)
        ended = time.monotonic()
        self._due = ended + max(FRESH_S, 5 * (ended - began))
        return latest
