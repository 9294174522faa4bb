"""Programs of a rank: each runs under a guard of its own, which ends it when the rank dies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_gateway import guard

__all__ = ["Program", "ProgramResult"]

GIVE_UP_S = guard.KILL_S + 5.0
"""Seconds after the end of the grace in which a guard must end."""


class ProgramResult(msgspec.Struct, frozen=True):
    """The end of a program.

    - `code`: the exit status; negative for a signal; None if the program did not end by itself.
    - `ended`: the limit that ended it (``seconds``, ``processes``, ``memory_mb``, ``disk_mb``); ``asked`` if the
      harness did; ``guard`` or ``sandbox`` if that failed; or "".
    - `output`, `errors`: the end of stdout and of stderr.
    - `cut`: number of bytes of both that are missing.
    """

    code: int | None
    ended: str
    output: str = ""
    errors: str = ""
    cut: int = 0


class Program:
    """A running program. Its folder and all its processes go with it. Starting and ending it make no task."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        stdin: str,
        limits: Mapping[str, float],
        parent: Path,
        on_end: Callable[[ProgramResult], None],
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="program-", dir=parent))
        self._on_end = on_end
        self._grace_s = limits["grace_s"]
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._told = bytearray()
        (self._folder / "tmp").mkdir()
        private = {"HOME": str(self._folder), "TMPDIR": str(self._folder / "tmp")}
        config = {"command": list(command), "variables": {**private, **variables}, "folder": str(self._folder)}
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = _started({**config, "stdin": stdin, **limits}, theirs)
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._read)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program, and after the grace SIGKILL to all its processes."""
        if not self._ended.done():
            try:
                self._control.send(b".")
            except OSError:
                return

    async def end(self) -> None:
        """End the program at once, and wait until nothing is left of it. It may be called twice."""
        if not self._ended.done():
            # The guard takes the end of the socket for the end of the rank.
            self._control.shutdown(socket.SHUT_WR)
            timer = self._loop.call_later(GIVE_UP_S, self._finish)
            try:
                await asyncio.shield(self._ended)
            finally:
                timer.cancel()

    def _read(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._told += data
        if not data:
            self._finish()

    def _finish(self) -> None:
        if self._ended.done():
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._ended.set_result(None)
        self._on_end(_result(bytes(self._told)))


def _result(told: bytes) -> ProgramResult:
    """The result as the guard has written it; without one, the guard was killed."""
    try:
        return msgspec.json.decode(told, type=ProgramResult)
    except UNDECODABLE:
        return ProgramResult(None, "guard")


def _started(config: Mapping[str, Any], control: socket.socket) -> subprocess.Popen[bytes]:
    source = os.memfd_create("config")
    try:
        os.write(source, json.dumps(config).encode())
        os.lseek(source, 0, os.SEEK_SET)
        fds = (control.fileno(), source)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
    finally:
        os.close(source)
