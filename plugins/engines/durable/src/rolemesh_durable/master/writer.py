"""Durable writes beside the master's loop: one after the other, each until it is done."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from rolemesh_durable.stores import JournalDamagedError, StateUnavailableError

__all__ = ["GivenUpError", "Writer", "Writes", "may_pass"]

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
SILENT_S = 10.0
"""Seconds after which a write that has neither ended nor failed is reported."""
HURRY_S = 10.0
"""Seconds for which a write is still tried once the job should end."""
LASTING = (errno.ENOENT, errno.ENOTDIR)
"""Errors that do not pass: a missing folder does not come back."""

log = logging.getLogger("rolemesh_durable.master")


def may_pass(error: BaseException) -> bool:
    """Return True if a later attempt may succeed: a full or failing disk, a store that is busy or away."""
    if isinstance(error, OSError):
        return error.errno not in LASTING
    return isinstance(error, StateUnavailableError)


class GivenUpError(JournalDamagedError):
    """A write that the end of the job needs cannot be done: the job ends as if it had been killed."""


class _Write(NamedTuple):
    what: str
    write: Callable[[], Any]
    then: Callable[[Any], None]
    patient: bool


class Writes:
    """Writes that are carried out in order, each until it is done. Their results go back to the caller.

    A write whose error `may_pass` is repeated with growing pauses, without a limit; `warning` reports it meanwhile.
    `collect` raises any other error, and nothing is written after it. After `hurry` it raises `GivenUpError` for a
    write that fails for `HURRY_S`.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[_Write | None] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open = 0
        self._current: tuple[_Write, float] | None = None
        self._pause = FIRST_PAUSE_S
        self._warning: tuple[float, str] | None = None
        self._hurry: tuple[float, str] | None = None

    def submit(
        self, what: str, write: Callable[[], T], then: Callable[[T], None] = lambda _: None, *, patient: bool = True
    ) -> None:
        """Queue `write`. `then` gets its result in `collect`. `what` names it in warnings.

        `collect` raises every error of a write that is not `patient`. Call this from the loop's thread only.
        """
        self._open += 1
        self._waiting.put(_Write(what, write, then, patient))

    def hurry(self, why: str) -> None:
        """Give up writes that fail for long from now on: the job should end, because of `why`."""
        self._hurry = self._hurry or (time.monotonic(), why)

    @property
    def hurried(self) -> bool:
        """True if `hurry` was called long ago."""
        return self._hurry is not None and time.monotonic() - self._hurry[0] > HURRY_S

    @property
    def busy(self) -> bool:
        """True if the result of a queued write has not been collected yet."""
        return self._open > 0

    def collect(self) -> None:
        """Pass on the results of finished writes. Raises the error of one that failed for good."""
        while True:
            try:
                done = self._done.get_nowait()
            except Empty:
                return
            self._open -= 1
            done()

    @property
    def warning(self) -> str:
        """The write that is being repeated, or that waits for a store: since when and why; "" if there is none."""
        warning, current, now = self._warning, self._current, time.monotonic()
        if warning is None and current is not None and now - current[1] > SILENT_S:
            return f"{current[0].what} cannot be written: its store has not answered for {now - current[1]:.0f} s"
        return f"{warning[1]} (tried again for {now - warning[0]:.0f} s)" if warning is not None else ""

    def take(self) -> bool:
        """Wait for the next write, and take it; return False if there will be none."""
        write = self._waiting.get()
        self._pause = FIRST_PAUSE_S
        self._current = (write, time.monotonic()) if write is not None else None
        return write is not None

    def attempt(self) -> float:
        """Try the taken write. Return 0.0 if it is done, or the seconds to wait before the next attempt.

        Raises an error that does not pass, as `collect` does later.
        """
        assert self._current is not None, "take() comes first"
        write, since = self._current
        try:
            result = write.write()
        except BaseException as error:
            if not write.patient or not may_pass(error):
                self._done.put(_raising(error))
                raise
            text = f"{write.what} cannot be written: {error}"
            if self._hurry is not None and self.hurried and time.monotonic() - since > HURRY_S:
                what = f"the job ends as if it had been killed ({self._hurry[1]}): {text}"
                remedy = "remove the cause; `--resume` then goes on after the newest snapshot on disk, if there is one"
                self._done.put(_raising(given_up := GivenUpError(what, remedy=remedy)))
                raise given_up from error
            if self._warning is None or self._warning[1] != text:
                log.warning("%s; it is tried again until it can", text)
            self._warning = (since, text)
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_S)
            return pause
        if self._warning is not None:
            log.warning("%s is written again, after %.1f s", write.what, time.monotonic() - since)
            self._warning = None
        self._current = None
        self._done.put(lambda: write.then(result))
        return 0.0


class Writer(Writes):
    """Writes in a thread of its own. It calls `wake` whenever there is something to collect."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Give up the waiting writes. Returns when the thread has ended, or after `timeout_s` in a write."""
        self._closed.set()
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        going_on = True
        while going_on and self.take() and not self._closed.is_set():
            going_on = self._until_done()
            self._wake()

    def _until_done(self) -> bool:
        """Repeat the write. Return True once it is done; False if it never will be."""
        try:
            while pause := self.attempt():
                if self._closed.wait(pause):
                    self._done.put(_raising(InterruptedError("it was not written any more")))
                    return False
        except BaseException:  # `collect` raises it
            return False
        return True


def _raising(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it
