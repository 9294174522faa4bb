"""The owner's side of a guard: starts it, and asks it one thing after the other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolemesh_agents import SandboxLostError
from rolemesh_sandbox_process.guard.client_job import SOCKET
from rolemesh_sandbox_process.guard.spawn import BOOT

__all__ = ["DISMISSED", "PACKAGE", "GuardProcess"]

PACKAGE = str(Path(__file__).resolve().parents[1])
"""The folder that contains this package. The guard imports from there."""
DISMISSED = bytes(4)
"""The request of no length: the owner lives, and needs the guard no more."""
_GRACE_S = 60.0
"""Seconds beyond the limit of a command after which a guard counts as hung."""


class GuardProcess:
    """A running guard. It ends with this process, however this process ends."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """Start a guard. Raises `SandboxLostError` if it is gone before it has its settings."""
        self._using = threading.RLock()
        """Held while a thread uses the socket, so that no other one closes it meanwhile."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", BOOT.format("main", "main"), PACKAGE]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True
            )
        self._socket = ours
        try:
            self._send(setup)
        except OSError as error:
            raise self._lost(error) from None

    @property
    def pid(self) -> int:
        """Number of the guard's process."""
        return int(self._process.pid)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request with its limit `seconds`, and wait for the answer.

        Raises `SandboxLostError` if the guard is gone.
        """
        with self._using:
            try:
                self._socket.settimeout(request["seconds"] + _GRACE_S)
                self._send(request)
                return self._answer()
            except (OSError, EOFError) as error:
                raise self._lost(error) from None

    def ask_client(self, request: Mapping[str, Any], on_listen: Callable[[socket.socket], None]) -> dict[str, Any]:
        """Do as `ask` does for a client. Give `on_listen` the socket that listens for it, if it has started."""
        with self._using:
            try:
                self._socket.settimeout(_GRACE_S)
                self._send(request)
                mark, files, _, _ = socket.recv_fds(self._socket, 1, 1)
            except OSError as error:
                raise self._lost(error) from None
            if mark == SOCKET:
                on_listen(socket.socket(fileno=files[0]))
            try:
                self._socket.settimeout(request["seconds"] + _GRACE_S)
                return self._answer()
            except (OSError, EOFError) as error:
                raise self._lost(error) from None

    def close(self) -> None:
        """End the guard, and with it all that it has started. Another thread that waits for an answer gets an error."""
        with suppress(OSError):  # closed, or the guard is gone
            self._socket.setblocking(False)
            self._socket.sendall(DISMISSED)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._using:
            self._socket.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _lost(self, error: Exception) -> SandboxLostError:
        """Close the guard, and return the error that says so."""
        self.close()
        what = f"the guard of the sandbox has ended with {self._process.returncode}: {error}"
        return SandboxLostError(what, remedy="look into the rank's log; perhaps the machine had no memory left")

    def _answer(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._exactly(int.from_bytes(self._exactly(4), "little")))
        return found

    def _send(self, value: Mapping[str, Any]) -> None:
        body = json.dumps(value).encode()
        self._socket.sendall(len(body).to_bytes(4, "little") + body)

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            if not (data := self._socket.recv(min(size - len(found), 1 << 20))):
                raise EOFError("it closed the connection")
            found += data
        return bytes(found)
