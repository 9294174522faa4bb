"""Observers in a thread of their own: whoever has news to pass on never waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

__all__ = ["Background"]


class _Broadcaster(Protocol):
    def broadcast(self, hook: str, /, **arguments: Any) -> object:
        """Call `hook` of every observer."""


class Background:
    """Calls hooks in the order in which they were given. Of the statuses that wait only the latest is passed on."""

    def __init__(self, observers: _Broadcaster) -> None:
        self._observers = observers
        self._queue: SimpleQueue[tuple[str, dict[str, Any]] | None] = SimpleQueue()
        self._status: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="observers", daemon=True)
        self._thread.start()

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Let every observer's `hook` be called, soon."""
        if hook == "status":
            with self._lock:
                waits, self._status = self._status is not None, arguments
            if waits:
                return
        self._queue.put((hook, arguments))

    def then(self, call: Callable[[], None]) -> None:
        """Have `call` called once the observers have been told all that was broadcast before; in their thread."""
        self._queue.put(("", {"call": call}))

    def close(self) -> None:
        """Nothing more will come."""
        self._queue.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Whether, within `timeout_s` after `close`, the observers have been told everything."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            hook, arguments = item
            if not hook:
                arguments["call"]()
                continue
            if hook == "status":
                with self._lock:
                    arguments, self._status = self._status or arguments, None
            self._observers.broadcast(hook, **arguments)
