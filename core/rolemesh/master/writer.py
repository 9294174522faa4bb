"""What must be durable is written beside the master's loop: one write after the other, each until it is done."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from rolemesh.state import StateUnavailableError

__all__ = ["Writer", "may_pass"]

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
LASTING = (errno.ENOENT, errno.ENOTDIR)
"""A folder that is not there does not come back by waiting."""

log = logging.getLogger("rolemesh.master")


def may_pass(error: BaseException) -> bool:
    """Whether what failed with `error` may succeed later: a full or failing disk, a store that is busy or away."""
    if isinstance(error, OSError):
        return error.errno not in LASTING
    return isinstance(error, StateUnavailableError)


class _Write(NamedTuple):
    what: str
    write: Callable[[], Any]
    then: Callable[[Any], None]
    patient: bool


class Writer:
    """Carries writes out, in order, in a thread of its own, and hands their results back to the loop's thread.

    What fails and `may_pass` is tried again with growing pauses for as long as it takes; `warning` says so meanwhile.
    What fails otherwise is raised by `collect`, and nothing is written after it. `wake` is called, in the writer's
    thread, whenever there is something to collect.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: SimpleQueue[_Write | None] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = 0
        self._closed = threading.Event()
        self._trouble: tuple[float, str] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, what: str, write: Callable[[], T], then: Callable[[T], None] = lambda _: None, *, patient: bool = True
    ) -> None:
        """Have `write` called; `then` gets what it returns, in `collect`. `what` names it in warnings.

        Of a write that is not `patient` every failure is raised by `collect`. From the loop's thread only.
        """
        self._open += 1
        self._waiting.put(_Write(what, write, then, patient))

    @property
    def busy(self) -> bool:
        """Whether something that was submitted has not been collected yet."""
        return self._open > 0

    def collect(self) -> None:
        """Call what follows from the writes that are done. Raises what cannot be written for good."""
        while True:
            try:
                done = self._done.get_nowait()
            except Empty:
                return
            self._open -= 1
            done()

    @property
    def warning(self) -> str:
        """What is being tried again, since when and why; "" if all is well."""
        trouble = self._trouble
        return f"{trouble[1]} (tried again for {time.monotonic() - trouble[0]:.0f} s)" if trouble is not None else ""

    def close(self, timeout_s: float = 5.0) -> None:
        """Give up what waits; returns when the thread has ended, or is held in a write for `timeout_s`."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (write := self._waiting.get()) is not None and not self._closed.is_set():
            try:
                result = self._until_done(write)
            except BaseException as error:
                self._done.put(_raising(error))
                self._wake()
                return
            self._done.put(lambda write=write, result=result: write.then(result))  # type: ignore[misc]
            self._wake()

    def _until_done(self, write: _Write) -> Any:
        pause = FIRST_PAUSE_S
        since = time.monotonic()
        while True:
            try:
                result = write.write()
            except Exception as error:
                if not write.patient or not may_pass(error):
                    raise
                text = f"{write.what} cannot be written: {error}"
                if self._trouble is None or self._trouble[1] != text:
                    log.warning("%s; it is tried again until it can", text)
                self._trouble = (since, text)
            else:
                if self._trouble is not None:
                    log.warning("%s is written again, after %.1f s", write.what, time.monotonic() - since)
                    self._trouble = None
                return result
            if self._closed.wait(pause):
                raise InterruptedError(f"{write.what} was not written any more")
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _raising(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it
