"""The handling of SIGTERM in a rank whose workload has no handler of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from rolemesh_processes.facts import children

__all__ = ["on_sigterm"]

LOOK_S = 0.02


def on_sigterm(expected: Callable[[], int], stop: Callable[[], None]) -> None:
    """Call `stop` in the main thread, between two of its bytecodes, when an expected SIGTERM comes.

    `expected()` is 0 if none is expected. Otherwise it is the time (`time.monotonic_ns`) that the children of this
    process, which got the signal too, have before `stop`: a handler that waits for one of them here would kill it. Any
    other SIGTERM has its ordinary effect: it ends the process, unless the process inherited it as ignored. So does one
    that a forked child gets.
    """
    inherited = signal.getsignal(signal.SIGTERM)

    def handle(*_: object) -> None:
        if until := expected():
            while children(os.getpid()) and time.monotonic_ns() < until:
                time.sleep(LOOK_S)
            stop()
        elif inherited is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is handle:
            signal.signal(signal.SIGTERM, inherited)

    signal.signal(signal.SIGTERM, handle)
    os.register_at_fork(after_in_child=forget)
