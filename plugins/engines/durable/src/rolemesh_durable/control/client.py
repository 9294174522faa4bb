"""The client side of a running master's control socket: a zmq socket in a private folder, named in ``control.json``.

On another machine that shares the run's folder, the client connects over TCP with the keys in that file, so `status`,
`stop`, `attach` and `logs` need no Ray. The client sends requests, and the master answers (`master.answers`); a master
that does not answer is gone.

A request has two frames: its number, which is returned with the answer, and its content. So a late answer is
recognized, and no client waits longer than its time limit.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeAlias

import msgspec
import zmq

from rolemesh.api.observer import Event, JobStatus, StepMetrics
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import CONTROL_FILE
from rolemesh_dataplane.curve import connect
from rolemesh_durable.malformed import UNREADABLE
from rolemesh_durable.runs import ControlFile, Run
from rolemesh_processes.boot import boot_id
from rolemesh_runtime.unreadable import DAMAGED

__all__ = [
    "BEYOND",
    "REQUEST_BYTES",
    "ControlClient",
    "Detach",
    "FinishJob",
    "MasterGoneError",
    "Refused",
    "RefusedError",
    "StopJob",
    "Update",
    "Watch",
]

REQUEST_BYTES = 1 << 16
"""Maximum size of a request in bytes. The connection of a larger one is closed."""
ANSWER_BYTES = 1 << 27
"""Maximum size of an answer in bytes. The connection that brings a larger one is closed."""
BEYOND = 1 << 62
"""A number after every event and step. A request with it gets no history."""
UNSENT = 4
"""Maximum number of requests that wait for a master that does not read."""


class MasterGoneError(RolemeshError):
    """The master does not answer: the job has ended, or its master died."""


class RefusedError(RolemeshError):
    """The master does not know the request, or its object."""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Request news: events after `event`, metrics after `step`. `owner`: the job lives only while this is repeated."""

    event: int = 0
    step: int = -1
    owner: bool = False


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """Request the end of the job."""

    reason: str


class FinishJob(msgspec.Struct, frozen=True, tag=True):
    """Request the end of the job in good order, after a step that all ranks finish."""

    reason: str


class Detach(msgspec.Struct, frozen=True, tag=True):
    """Let the job continue without its owner."""


Request: TypeAlias = Watch | StopJob | FinishJob | Detach
"""The requests that the master's core answers. Extensions answer further ones (`ShellPart.requests`)."""


class Update(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request: the present status and, for `Watch`, the news that the master remembers.

    It is one page: more may follow the last of `events` and `lines`, and older items than the master remembers may be
    missing before the first. `event` is the number of the newest event, `step` that of the newest line.
    """

    status: JobStatus
    events: tuple[Event, ...] = ()
    lines: tuple[StepMetrics, ...] = ()
    event: int = 0
    step: int = -1


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The answer to an invalid request."""

    why: str


_decode_answer = msgspec.msgpack.Decoder(Update | Refused).decode


class ControlClient:
    """A connection to the master of the job in `run_dir`, whichever process it is.

    Every request raises `MasterGoneError` if there is no ``control.json`` or nobody answers within `timeout_s`; the
    next one goes to the master of that time. It raises `RefusedError` if the master cannot do it.
    """

    def __init__(self, run_dir: str | Path, timeout_s: float = 5.0) -> None:
        self._run = Run(run_dir)
        self._timeout_s = timeout_s
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._master: ControlFile | None = None
        self._asked, self._heard = 0, False

    def watch(self, event: int = 0, step: int = -1, *, owner: bool = False) -> Update:
        """Return the news since event number `event` and step `step`: the first page of what the master remembers."""
        return self.ask(Watch(event, step, owner))

    def status(self) -> JobStatus:
        """Return the present status."""
        return self.watch(BEYOND, BEYOND).status

    def stop(self, reason: str) -> Update:
        """Request the end of the job. Returns at once; the end follows."""
        return self.ask(StopJob(reason))

    def finish(self, reason: str) -> Update:
        """Request the end of the job in good order. The status has `finishing` when the request is journalled."""
        return self.ask(FinishJob(reason))

    def detach(self) -> Update:
        """Give up the ownership that ``watch(owner=True)`` expresses."""
        return self.ask(Detach())

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        self._context.destroy(linger=0)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def ask(self, request: msgspec.Struct) -> Update:
        """Send a request, also one that an extension of the master answers, and return the answer."""
        deadline = time.monotonic() + self._timeout_s
        master, socket = self._connect()
        self._asked += 1
        number = self._asked.to_bytes(8, "big")
        question = [number, msgspec.msgpack.encode(request)]
        sent = False
        # Only `poll` blocks, and that until the deadline: what it announces need not be what is awaited.
        while (left := deadline - time.monotonic()) > 0:
            if not socket.poll(max(1, int(left * 1000)), zmq.POLLIN if sent else zmq.POLLOUT):
                continue
            try:
                if not sent:
                    socket.send_multipart(question, zmq.NOBLOCK)
                    sent = True
                    continue
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                continue
            if len(frames) == 2 and frames[0] == number:
                self._heard = True
                return _update(master, frames[1])
        raise MasterGoneError(
            f"the master of job {master.job} (pid {master.pid}) does not answer",
            remedy="rolemesh events shows what it journalled last",
        )

    def _connect(self) -> tuple[ControlFile, zmq.Socket[bytes]]:
        """Return a connection to the present master. A master that is only slow keeps its connection, because a new one
        would be slow as well. While a master answers, its address is not read again: the store may not answer."""
        if self._socket is not None and self._master is not None and self._heard:
            self._heard = False
            return self._master, self._socket
        try:
            master = self._run.control()
        except RolemeshError as error:
            if self._master is None:
                raise
            raise MasterGoneError(error.what, where=error.where, remedy=error.remedy) from error
        if master is None:
            raise MasterGoneError(f"no job runs in {self._run.path}", where=str(self._run.path / CONTROL_FILE))
        if master != self._master:
            self._disconnect()
            self._master = master
        if self._socket is None:
            socket = self._context.socket(zmq.DEALER)
            # Questions that nobody reads are not piled up for the one who reads next.
            socket.linger, socket.sndhwm, socket.maxmsgsize = 0, UNSENT, ANSWER_BYTES
            try:
                _connect(socket, master)
            except zmq.ZMQError as error:
                socket.close()
                where = str(self._run.path / CONTROL_FILE)
                raise RolemeshError(f"the file is damaged: {error}", where=where, remedy=DAMAGED) from error
            self._socket = socket
        return master, self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


def _connect(socket: zmq.Socket[bytes], master: ControlFile) -> None:
    """Connect to the master's own socket if it is visible here; else to its address for other machines."""
    here = master.boot == boot_id() and Path(master.endpoint.removeprefix("ipc://")).exists()
    if here or master.keys is None:
        socket.connect(master.endpoint)
    else:
        connect(socket, master.remote, master.keys)


def _update(master: ControlFile, data: bytes) -> Update:
    try:
        answer: Update | Refused = _decode_answer(data)
    except UNREADABLE as error:
        raise RefusedError(
            f"the answer of the master of job {master.job} cannot be read: {error}",
            remedy="ask with the rolemesh that the job was started with",
        ) from error
    if isinstance(answer, Refused):
        raise RefusedError(f"the master of job {master.job} refuses: {answer.why}")
    return answer
