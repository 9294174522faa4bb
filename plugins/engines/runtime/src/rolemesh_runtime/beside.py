"""Work in a thread of its own, for a caller that does not wait for a store as long as the store likes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Beside"]

T = TypeVar("T")


class Beside(Generic[T]):
    """Work that has begun in a `thread`.

    A thread that waits for a store cannot be ended. It is a daemon, so the process can end.
    """

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._found: list[T] = []
        self._raised: list[BaseException] = []
        self.thread = threading.Thread(target=self._go, args=(work,), daemon=True, name=name)
        self.thread.start()

    def outcome(self) -> T:
        """Return what the work has returned, and raise what it has raised. Call it when the thread has ended."""
        if self._raised:
            raise self._raised[0]
        return self._found[0]

    def _go(self, work: Callable[[], T]) -> None:
        try:
            self._found.append(work())
        except BaseException as error:
            self._raised.append(error)
