"""Forks a process that serves this one over a socket, and has no other thing of it: no file, no socket, no terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from rolemesh_processes.beginning import die_with_parent

__all__ = ["Frames", "alone", "fork_serving", "how_ended", "moved", "send"]

CRASHED: Final = 70
"""Exit status of a process whose `serve` has raised an exception: a fault of ours."""
_LOWEST, _SPREAD = 200, 700
"""The descriptor of the socket is drawn from this range, so that what writes to low numbers does not meet it."""
_HEAD = 5


def fork_serving(
    serve: Callable[[socket.socket], None], *, quiet: bool, dies: bool = True
) -> tuple[int, socket.socket]:
    """Fork a process in a session of its own that runs `serve` with its end of a socket, and then ends. Returns its
    number, and this process's end.

    `quiet`: it has no output. Otherwise it shares this process's. `dies`: the kernel kills it when the thread that
    forks it ends; otherwise it must watch its parent itself.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        if dies:
            die_with_parent(parent)
        os.setsid()
        serve(alone(theirs, quiet))
        os._exit(0)
    except BaseException:
        with suppress(BaseException):
            sys.excepthook(*sys.exc_info())
    os._exit(CRASHED)


def how_ended(status: int) -> str:
    """Return how a process has ended, in words. `status`: as `os.waitpid` returns it."""
    code = os.waitstatus_to_exitcode(status)
    return f"the exit status {code}" if code >= 0 else f"the signal {signal.Signals(-code).name}"


def send(to: socket.socket, kind: bytes, body: bytes = b"") -> None:
    """Send a message: a kind of one byte, the length, and the body."""
    to.sendall(kind + len(body).to_bytes(_HEAD - 1, "little") + body)


class Frames:
    """The messages in a stream of bytes. A message longer than `most` is an error of the sender: `ValueError`. The call
    after those before it raises it.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages that are complete with `data`: their kinds and bodies."""
        self._held += data
        found: list[tuple[bytes, bytes]] = []
        while len(self._held) >= _HEAD:
            end = _HEAD + int.from_bytes(self._held[1:_HEAD], "little")
            if end > self._most and not found:
                raise ValueError(f"a message of {end} bytes")
            if len(self._held) < end or end > self._most:
                break
            found.append((bytes(self._held[:1]), bytes(self._held[_HEAD:end])))
            del self._held[:end]
        return found


def moved(own: socket.socket, others: Iterable[int]) -> socket.socket:
    """Return the socket at a drawn number, and give up the descriptors in `others`.

    Each old number stays open, as /dev/null: an object of the parent that closes its own later closes no other.
    """
    old = own.detach()
    number = fcntl.fcntl(old, fcntl.F_DUPFD_CLOEXEC, _LOWEST + secrets.randbelow(_SPREAD))
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in {old, *others} - {number, nothing}:
        with suppress(OSError):  # it is closed
            os.fstat(each)
            os.dup2(nothing, each, inheritable=each < 3)
    os.close(nothing)
    return socket.socket(fileno=number)


def alone(own: socket.socket, quiet: bool) -> socket.socket:
    """Give up the parent's descriptors, signals and event loop, and return the socket as `moved` does."""
    own = moved(own, {int(name) for name in os.listdir("/proc/self/fd")} - (set() if quiet else {1, 2}))
    signal.set_wakeup_fd(-1)
    for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        with suppress(OSError, ValueError):
            signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    threading.current_thread().name = "MainThread"
    return own
