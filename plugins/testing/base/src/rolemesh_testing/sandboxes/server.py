"""A server outside of a sandbox, for the tests of its clients."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

__all__ = ["PORT", "Answering"]

PORT: Final = 61200
"""Port of the server inside of the sandbox."""


class Answering:
    """Says hello to each connection, in a thread, until its context ends."""

    def __init__(self) -> None:
        self.listens = False
        self._listener: socket.socket | None = None
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listener.close()

    def on_listen(self, listener: socket.socket) -> None:
        """Take the socket of a sandbox."""
        self.listens, self._listener = True, listener
        self._thread.start()

    def _answer(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    connection.sendall(b"hello")
