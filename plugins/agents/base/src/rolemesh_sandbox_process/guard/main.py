"""The loop of the guard: requests of the sandbox's owner, one after the other."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolemesh_sandbox_process.guard.client_job import NO_SOCKET, ClientJob
from rolemesh_sandbox_process.guard.emptying import forget, give, remove
from rolemesh_sandbox_process.guard.job import End, Job, OwnerGoneError
from rolemesh_sandbox_process.guard.kernel import subreaper
from rolemesh_sandbox_process.guard.output import Output

__all__ = ["main"]

_NEW = "[the Python interpreter is a new one, without the variables of earlier cells]\n"


def main() -> None:
    """Serve the owner at the other end of descriptor 0, until it ends or closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as owner:
        setup = _receive(owner)
        if setup is None:
            return
        subreaper()
        serve = Guard(setup, owner.fileno())
        request = None
        try:
            if os.getppid() != setup["owner"]:  # it ended while this process started
                raise OwnerGoneError
            while serve.asked() and (request := _receive(owner)):
                _send(owner, serve.answer(request))
        except (OwnerGoneError, ConnectionError):
            pass
        finally:
            serve.close()
        if setup["remove"] and request != {} and not _dismissed(owner):
            with suppress(OSError):
                remove(setup["folder"])


class Guard:
    """Runs commands, or the cells of one interpreter."""

    def __init__(self, setup: Mapping[str, Any], owner: int) -> None:
        self.setup = setup
        self.owners = [owner]
        with suppress(OSError):
            self.owners.append(os.pidfd_open(setup["owner"]))
        self._cells: Job | None = None
        self._code = self._asked = self._done = -1
        self._replaced = False

    def asked(self) -> bool:
        """Wait for a request. Return false if the owner has ended."""
        poll = select.poll()
        for each in self.owners:
            poll.register(each, select.POLLIN)
        return not {opened for opened, _ in poll.poll()} & set(self.owners[1:])

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command or a cell, and return its result, or an error of the sandbox itself."""
        if self.setup["user"]:
            give(self.setup["folder"], self.setup["user"])
            give(self.setup["tmp"], self.setup["user"])
        if "client" in request:
            return self._client(request)
        end, output = self._cell(request) if "cell" in request else self._run(request)
        about = {"code": end.code, "ended": end.ended, "cut": output.cut, "error": end.error}
        return {**about, "output": output.text()}

    def close(self) -> None:
        """End everything, and remove the folder for temporary files."""
        if self._cells is not None:
            self._cells.close()
        if self.setup["tmp"]:
            with suppress(OSError):
                remove(self.setup["tmp"])
        if self.setup["user"]:
            forget(self.setup["user"])

    def _run(self, request: Mapping[str, Any]) -> tuple[End, Output]:
        given = os.memfd_create("stdin")
        try:
            _fill(given, request["stdin"])
            job = Job(self.setup, request["run"], self.owners, {0: given})
        finally:
            os.close(given)
        try:
            return job.follow(request["seconds"])
        finally:
            job.close()

    def _client(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = os.memfd_create("stdin")
        try:
            _fill(given, request["stdin"])
            job = ClientJob(self.setup, request["client"], self.owners, {0: given})
        finally:
            os.close(given)
        try:
            end, output = job.follow(request["seconds"])
        finally:
            job.close()
        if not job.passed:
            with socket.socket(fileno=os.dup(self.owners[0])) as owner:
                owner.sendall(NO_SOCKET)
        about = {"code": end.code, "ended": end.ended, "cut": output.cut + job.errors.cut, "error": end.error}
        return {**about, "output": output.text(), "errors": job.errors.text()}

    def _cell(self, request: Mapping[str, Any]) -> tuple[End, Output]:
        note = _NEW if self._replaced and self._cells is None else ""
        if self._cells is None:
            self._cells = self._interpreter()
        else:
            self._cells.pause(signal.SIGCONT)
        size = _fill(self._code, request["cell"])
        with suppress(BrokenPipeError):
            os.write(self._asked, size.to_bytes(8, "little"))
        end, output = self._cells.follow(request["seconds"], self._done, note)
        if self._cells.over:
            self._cells.close()
            for each in (self._code, self._asked, self._done):
                os.close(each)
            self._cells, self._replaced = None, True
        else:
            self._cells.pause(signal.SIGSTOP)
        return end, output

    def _interpreter(self) -> Job:
        source = Path(__file__).with_name("interpreter.py").read_text(encoding="utf-8")
        self._code = os.memfd_create("cell")
        reading, self._asked = os.pipe()
        self._done, writing = os.pipe()
        command = [self.setup["python"], "-c", f"{source}\n\nserve(3, 4, 5)\n"]
        with open(os.devnull, "rb") as nothing:
            files = {0: nothing.fileno(), 3: self._code, 4: reading, 5: writing}
            job = Job(self.setup, command, self.owners, files)
        for each in (reading, writing):
            os.close(each)
        return job


def _fill(opened: int, text: str) -> int:
    """Make `text` the content of a file that is open for writing, and its beginning the position. Return its size."""
    data = text.encode(errors="replace")
    os.ftruncate(opened, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(opened, data[written:], written)
    return len(data)


def _dismissed(owner: socket.socket) -> bool:
    """Whether the owner has ended the guard in good order, by a request of no length."""
    try:
        return owner.recv(4, socket.MSG_DONTWAIT) == bytes(4)
    except OSError:
        return False


def _receive(owner: socket.socket) -> Any:
    """Return the next request; empty if the owner dismisses the guard, None if it is gone."""
    head = _exactly(owner, 4)
    if head is None:
        return None
    size = int.from_bytes(head, "little")
    body = _exactly(owner, size) if size else b"{}"
    return None if body is None else json.loads(body)


def _exactly(owner: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        try:
            data = owner.recv(min(size - len(found), 1 << 20))
        except ConnectionError:
            return None
        if not data:
            return None
        found += data
    return bytes(found)


def _send(owner: socket.socket, value: Any) -> None:
    body = json.dumps(value).encode()
    owner.sendall(len(body).to_bytes(4, "little") + body)
