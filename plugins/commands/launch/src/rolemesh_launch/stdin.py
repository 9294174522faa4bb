"""The command's standard input, for workers on its machine. As under torchrun they share the open file itself."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["give", "take"]

TAKE_S = 5.0
"""Seconds in which the command must answer a worker."""


@contextmanager
def give() -> Iterator[str]:
    """Give this process's standard input to processes of the same user that ask for it. Yields the folder for
    `take`."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-stdin-") as folder, socket.socket(socket.AF_UNIX) as listener:
        with _in(folder) as path:
            listener.bind(path)
        listener.listen()
        threading.Thread(target=_serve, args=(listener,), name="stdin", daemon=True).start()
        yield folder


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):  # the command ends
        while True:
            worker, _ = listener.accept()
            with worker, suppress(OSError):  # the worker has ended, or this process has no standard input
                socket.send_fds(worker, [b"0"], [0])


def take(folder: str) -> None:
    """Use the standard input of the command that gives it in `folder`. If the command has ended, change nothing."""
    with socket.socket(socket.AF_UNIX) as command:
        command.settimeout(TAKE_S)
        try:
            with _in(folder) as path:
                command.connect(path)
            _, found, _, _ = socket.recv_fds(command, 1, 1)
        except OSError:
            return
    for fd in found:
        os.dup2(fd, 0)
        os.close(fd)
    before = sys.stdin
    raw = io.FileIO(0, closefd=False)
    raw.name = before.name
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(raw), before.encoding, before.errors)  # type: ignore[misc]
    sys.stdin.mode = "r"  # type: ignore[misc]


@contextmanager
def _in(folder: str) -> Iterator[str]:
    """Yield a path of the socket in `folder` that is short enough for any folder."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/socket"
    finally:
        os.close(fd)
