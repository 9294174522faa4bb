"""Looks at files again and again, in a thread of its own: a store that blocks or fails does not hold up the caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Looking"]

T = TypeVar("T")


class Looking(Generic[T]):
    """Calls `look` every `every_s` seconds until it returns something other than None.

    A thread that waits for a store cannot be ended. It is a daemon, so the process can end.
    """

    def __init__(self, look: Callable[[], T | None], every_s: float) -> None:
        self.found: T | None = None
        """The value that `look` has returned."""
        self.error: Exception | None = None
        """The error of the last look; None if it found nothing."""
        self._look, self._every_s = look, every_s
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._begun = self._ended = 0
        self._since = time.monotonic()
        threading.Thread(target=self._run, daemon=True, name="look").start()

    @property
    def silent_s(self) -> float:
        """Return for how many seconds the present look has waited for the store; 0.0 if there is none."""
        return time.monotonic() - self._since if self._begun > self._ended else 0.0

    def wait(self, seconds: float) -> None:
        """Return when something has been found, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self.found is not None, seconds)

    def look_again(self, seconds: float) -> None:
        """Return when a look that began after this call has ended, something is found, or `seconds` have passed."""
        with self._changed:
            wanted = self._begun + 1
            self._changed.wait_for(lambda: self.found is not None or self._ended >= wanted, seconds)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _run(self) -> None:
        while self.found is None and not self._closed.is_set():
            self._since, self._begun = time.monotonic(), self._begun + 1
            found, error = None, None
            try:
                found = self._look()
            except Exception as raised:  # the caller decides what to do about it
                error = raised
            with self._changed:
                self.found, self.error, self._ended = found, error, self._begun
                self._changed.notify_all()
            if found is None:
                self._closed.wait(self._every_s)
