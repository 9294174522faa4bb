"""What an agent asks the supervisor when its master has been silent for long: will there be one?

The supervisor answers for itself: as long as it has not given up there is a master, or the next one is started. It
also is the one that ends a master that hangs. Nothing is read from whoever asks, so nobody can hold it up.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["Answering", "master_comes"]

ANSWER_S = 2.0
"""How long an agent waits for the answer. The supervisor does nothing that takes longer."""
WAITING = 128
"""Agents that may ask at the same time."""
YES = b"+"


def _address(folder: Path) -> str:
    return str(folder / "supervisor")


def master_comes(folder: Path) -> bool:
    """Whether the job in this private folder has a master, or will have one. An agent asks this."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(_address(folder))
            return sock.recv(1) == YES
    except OSError:
        return False


class Answering:
    """The supervisor's end: poll `fileno` for reading, then `answer`."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_address(folder))
        self._socket.bind(_address(folder))
        self._socket.listen(WAITING)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Say yes to one who asks. Does not wait."""
        with contextlib.suppress(OSError):
            asking, _ = self._socket.accept()
            with asking:
                asking.setblocking(False)
                asking.send(YES)

    def close(self) -> None:
        """There will be no master any more."""
        self._socket.close()
