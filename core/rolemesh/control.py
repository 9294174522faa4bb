"""How a command line talks to a running master: a zmq socket in a private folder, named in ``control.json``.

The master lives on the machine of its run folder, whatever the backend, so that `status`, `stop`, `attach` and `logs`
need no Ray. The client asks, the master answers; a master that does not answer is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import zmq

from rolemesh.errors import RolemeshError
from rolemesh.observer import Event, JobStatus, StepMetrics

__all__ = [
    "CONTROL_FILE",
    "Control",
    "ControlClient",
    "Detach",
    "InjectFault",
    "MasterGoneError",
    "StopJob",
    "Update",
    "Watch",
]

CONTROL_FILE = "control.json"


class MasterGoneError(RolemeshError):
    """The master does not answer: the job has ended, or its master died."""


class Control(msgspec.Struct, frozen=True):
    """Content of ``control.json``: which job runs in this folder, and where its master listens.

    `ray_address` and `namespace` are those of the Ray that it runs on, "" on the local backend. `pid` is the master's,
    `started` seconds since 1970.
    """

    job: str
    job_id: str
    backend: str
    endpoint: str
    pid: int
    started: float
    ray_address: str = ""
    namespace: str = ""


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Ask for news: events after `event`, metrics after `step`. `owner`: the job lives only while this is asked."""

    event: int = 0
    step: int = -1
    owner: bool = False


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """Ask the job to end."""

    reason: str


class Detach(msgspec.Struct, frozen=True, tag=True):
    """Leave the job to its master."""


class InjectFault(msgspec.Struct, frozen=True, tag=True):
    """Rehearsal: let something fail. `target` is ``master``, ``agent:<name>``, ``node:<id>``, or ``<role>/<rank>``."""

    kind: Literal["kill", "stop", "exit", "raise", "disk"]
    target: str


Request: TypeAlias = Watch | StopJob | Detach | InjectFault


class Update(msgspec.Struct, frozen=True):
    """The answer to every request: the present picture and, for `Watch`, what is new."""

    status: JobStatus
    events: tuple[Event, ...] = ()
    lines: tuple[StepMetrics, ...] = ()


class ControlClient:
    """A connection to the master of the job in `run_dir`, whichever it is at the time.

    Every question raises `MasterGoneError` if there is no ``control.json`` or nobody answers within `timeout_s`; the
    next one goes to the master that there is by then.
    """

    def __init__(self, run_dir: str | Path, timeout_s: float = 5.0) -> None:
        self._path = Path(run_dir, CONTROL_FILE)
        self._timeout_ms = int(timeout_s * 1000)
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._master: Control | None = None

    def watch(self, event: int = 0, step: int = -1, *, owner: bool = False) -> Update:
        """News since event number `event` and step `step`."""
        return self._ask(Watch(event, step, owner))

    def status(self) -> JobStatus:
        """The present picture."""
        # Beyond every event and step: not the history.
        return self.watch(1 << 62, 1 << 62).status

    def stop(self, reason: str) -> Update:
        """Ask the job to end; returns at once, the job's end follows."""
        return self._ask(StopJob(reason))

    def detach(self) -> Update:
        """Give up the ownership that ``watch(owner=True)`` expresses."""
        return self._ask(Detach())

    def inject(self, kind: Literal["kill", "stop", "exit", "raise", "disk"], target: str) -> Update:
        """Let something fail, for a rehearsal; a master that is to die does not answer."""
        return self._ask(InjectFault(kind, target))

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        self._context.term()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, request: Request) -> Update:
        master, socket = self._connect()
        socket.send(msgspec.msgpack.encode(request))
        if not socket.poll(self._timeout_ms):
            raise MasterGoneError(
                f"the master of job {master.job} (pid {master.pid}) does not answer",
                remedy="rolemesh events shows what it journalled last",
            )
        return msgspec.msgpack.decode(socket.recv(), type=Update)

    def _connect(self) -> tuple[Control, zmq.Socket[bytes]]:
        """To the present master. To one that is only slow the connection stays: a new one would be slow as well."""
        try:
            master = msgspec.json.decode(self._path.read_bytes(), type=Control)
        except FileNotFoundError:
            raise MasterGoneError(f"no job runs in {self._path.parent}", where=str(self._path)) from None
        if master != self._master:
            self._disconnect()
            self._master = master
        if self._socket is None:
            self._socket = self._context.socket(zmq.REQ)
            # A question whose answer was not awaited (Ctrl-C, a time-out) must not stop the next one.
            self._socket.setsockopt(zmq.REQ_RELAXED, 1)
            self._socket.setsockopt(zmq.REQ_CORRELATE, 1)
            self._socket.connect(master.endpoint)
        return master, self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
