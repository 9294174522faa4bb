"""The signals of a script: those that stop a job, and those that come while the script pauses."""

from __future__ import annotations

import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # those of `signal` make enums, which takes 15 µs
from _signal import signal as handle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rolemesh_processes.signals import handle_unless_ignored

__all__ = ["STOPPING", "Held", "caught"]

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the command passes on to the workers when it gets one. They stop the job."""
HANDLED = (
    *STOPPING, signal.SIGALRM, signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP, signal.SIGWINCH, signal.SIGVTALRM,
    signal.SIGPROF, signal.SIGXCPU, signal.SIGIO,
)  # fmt: skip
"""Signals for which programs have handlers."""


class Held:
    """Holds signals back for which the script has a handler in Python, while it pauses.

    CPython runs such a handler in whatever the main thread does. In the rank's own code an exception of the handler,
    such as `SystemExit`, would be the rank's.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._came: list[int] = []

    def hold(self) -> None:
        """The script pauses."""
        for number in HANDLED:
            handler = getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                handle(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)

    def release(self) -> None:
        """The script continues: give it its handlers back, and the signals that have come."""
        for number, handler in self._handlers.items():
            handle(number, handler)
        self._handlers.clear()
        came, self._came = dict.fromkeys(self._came), []
        for number in came:
            signal.raise_signal(number)


@contextmanager
def caught(numbers: Sequence[int], first: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Inside, each of these signals raises `KeyboardInterrupt`, unless this process ignores it. The first one also
    calls ``first(number)``, in a thread of its own."""
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            threading.Thread(target=first, args=(signal.Signals(number),), name="stop", daemon=True).start()
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        handle_unless_ignored(signal.Signals(number), interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
