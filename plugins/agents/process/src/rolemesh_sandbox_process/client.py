"""The owner's side of a guard: starts it, and asks it one thing after the other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolemesh_agents import SandboxLostError
from rolemesh_sandbox_process.guard.spawn import BOOT

__all__ = ["PACKAGE", "GuardProcess"]

PACKAGE = str(Path(__file__).resolve().parents[1])
"""The folder that contains this package. The guard imports from there."""
_GRACE_S = 60.0
"""Seconds beyond the limit of a command after which a guard counts as hung."""


class GuardProcess:
    """A running guard. It ends with this process, however this process ends."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """Start a guard. Raises `SandboxLostError` if it is gone before it has its settings."""
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
        try:
            self._socket.settimeout(request["seconds"] + _GRACE_S)
            self._send(request)
            answer: dict[str, Any] = json.loads(self._exactly(int.from_bytes(self._exactly(4), "little")))
        except (OSError, EOFError) as error:
            raise self._lost(error) from None
        return answer

    def close(self) -> None:
        """End the guard, and with it all that it has started."""
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
