"""An agent's question to the supervisor after a long silence of its master: will there be a master?

The supervisor answers for itself: until it gives up, there is a master, or it starts the next one. It also ends a
master that hangs. It reads nothing from the agent, so no agent can delay it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

__all__ = ["Answering", "master_comes"]

ANSWER_S = 2.0
"""Seconds that an agent waits for the answer. Nothing that the supervisor does takes longer."""
WAITING = 128
"""Maximum number of agents that may ask at the same time."""
YES = b"+"


def _address(folder: Path) -> str:
    return str(folder / "supervisor")


def master_comes(folder: Path) -> bool:
    """Return whether the job in this private folder has a master or will have one. Called by an agent."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(_address(folder))
            return sock.recv(1) == YES
    except OSError:
        return False


class Answering:
    """The supervisor's end: poll `fileno` for reading, then call `answer`."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_address(folder))
        self._socket.bind(_address(folder))
        self._socket.listen(WAITING)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer yes to one agent. Does not wait."""
        with contextlib.suppress(OSError):
            asking, _ = self._socket.accept()
            with asking:
                asking.setblocking(False)
                asking.send(YES)

    def close(self) -> None:
        """Stop answering: there will be no master any more."""
        self._socket.close()
