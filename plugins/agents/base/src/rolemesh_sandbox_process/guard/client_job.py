"""A running client: a command that reaches one server outside of its network, through a socket that listens inside."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from rolemesh_sandbox_process.guard.job import End, Job
from rolemesh_sandbox_process.guard.output import Output

__all__ = ["NO_SOCKET", "SOCKET", "ClientJob"]

SOCKET, NO_SOCKET = b"+", b"-"
"""Bytes that the guard sends to the owner before the result: with the listening socket, or without one."""


class ClientJob(Job):
    """The command, its stderr apart from its output, and the way of the listening socket to the owner."""

    def __init__(
        self, setup: Mapping[str, Any], command: Sequence[str], owners: Sequence[int], files: Mapping[int, int]
    ) -> None:
        errors, writing = os.pipe()
        os.set_blocking(errors, False)
        super().__init__(setup, command, owners, {**files, 2: writing})
        os.close(writing)
        self.errors = self.further[errors] = Output(int(self.limits["output_kb"] * 1000))
        self.passed = False
        """Whether the owner has the socket."""

    def _ended(self, ready: set[int], done: int | None) -> End | None:
        if self.status not in ready:
            return None
        with socket.socket(fileno=os.dup(self.status)) as status:
            told, files, _, _ = socket.recv_fds(status, 4096, 1)
        if not files:
            return self._reported(told)
        if self.passed:
            os.close(files[0])
            return None
        with socket.socket(fileno=os.dup(self.owners[0])) as owner:
            socket.send_fds(owner, [SOCKET], files)
        os.close(files[0])
        self.passed = True
        return None
