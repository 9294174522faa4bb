"""A clean, preloaded process that forks ranks in milliseconds.

``python -m rolemesh_durable.agent.zygote FD PARENT FOLDER ALONE_S MODULE…`` has one thread and no CUDA context. FD is a
SOCK_SEQPACKET pair with the agent. The agent sends `Fork` (`rolemesh_processes.parcels`). The zygote answers `Ready` or
`Broken` once, then `Forked` and `Exited`, or `Broken` for a rank that could not be forked; the others are not affected.

Until it is ready, it dies with the agent's thread that started it. From then on it outlives its agent, as its ranks do;
they die with the zygote (PR_SET_PDEATHSIG). The agent's next incarnation connects to ``FOLDER/zygote-<pid>``, receives
the ranks (`Row`), and commands from then on; messages of an older one are ignored. The zygote waits ALONE_S seconds for
the next incarnation.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from rolemesh.api.import_ref import import_paths
from rolemesh.api.rank_ref import RankRef
from rolemesh.kinds.installed import distribution
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.refusals import refused
from rolemesh_processes import openmp, parcels
from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.ending import disown_finalizers, end_program, flush_files, release_modules
from rolemesh_processes.output import write_to
from rolemesh_processes.signals import pass_over

if TYPE_CHECKING:  # most modules are imported by `main`, which first switches the garbage collector off
    from rolemesh_durable.protocol.starts import RankStart

__all__ = [
    "ADOPT",
    "SOCKET",
    "Broken",
    "Exited",
    "Fork",
    "Forked",
    "Making",
    "Ready",
    "Replaced",
    "Row",
    "ZygoteMessage",
]

PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
EVERY_RANK = (
    "email.parser",
    "rolemesh_dataplane.shm_transport",
    "rolemesh_dataplane.tcp_transport",
    "rolemesh_durable.rank.main",
)
"""Modules that most ranks import; the zygote imports them once."""
SOCKET = "zygote-"
"""Prefix of the name of the socket, followed by the zygote's pid, at which it waits for its agent's next
incarnation."""
ADOPT = "adopt/"
"""Prefix of an agent's first message, followed by its incarnation."""
ADOPT_S = 2.0
"""Seconds in which a new connection must send this message."""
BROKEN_EXIT_CODE = 70
"""Exit code of a rank that fails outside of its life."""
MAX_CHARS = 20_000
"""Maximum length of an error text, because a message on FD is limited."""


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork a rank: `start` is an encoded `RankStart`, `log` gets its output, `env` is added to its environment."""

    who: StartRef
    start: bytes
    log: str
    env: dict[str, str]


class Making(msgspec.Struct, frozen=True, tag=True):
    """Progress of the zygote's environment; see `rolemesh_durable.agent.environment`."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All preloads are imported."""

    pid: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A preload could not be imported (`who` is None), or a fork was refused.

    With the cause "environment", the environment could not be prepared.
    """

    who: StartRef | None
    error: str
    cause: Literal["start", "environment"] = "start"


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A rank's process exists."""

    who: StartRef
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A rank's process has ended and is reaped; `status` is that of ``waitpid``."""

    who: StartRef
    pid: int
    status: int


class Replaced(msgspec.Struct, frozen=True, tag=True):
    """Another incarnation of the agent commands from now on."""


class Row(msgspec.Struct, frozen=True):
    """The newest process of a rank, as sent to an adopting agent: how it was started, and its status if it has
    ended."""

    who: StartRef
    pid: int
    start: bytes
    status: int | None = None


ZygoteMessage: TypeAlias = Making | Ready | Broken | Forked | Exited | Replaced


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    control = socket.socket(fileno=int(sys.argv[1]))
    folder, alone_s = sys.argv[3], float(sys.argv[4])
    pass_over(signal.SIGINT)
    import_paths(".")  # a preload may be the job's own
    gc.disable()  # nothing of what is imported goes again: looking it through takes a fifth of the time
    for module in sys.argv[5:]:
        try:
            importlib.import_module(module)
        except BaseException:
            _send(control, Broken(None, f"preload {module!r} failed:\n{traceback.format_exc()}"))
            return
    for module in EVERY_RANK:
        importlib.import_module(module)
    shipped = importlib.import_module("rolemesh_durable.extensions.shipped")
    shipped.imported("rank")
    distribution("rolemesh")  # what is installed is listed once, not by every rank
    gc.freeze()
    gc.enable()
    openmp.end_threads()
    if os.fork():
        os._exit(0)  # the child is nobody's: neither the agent's death nor what Ray does to an actor's children ends it
    rank = importlib.import_module("rolemesh_durable.rank.main")
    zygote = _Zygote(control, folder, alone_s, rank)
    try:
        zygote.serve()
    except _IsRankError as forked:
        request, start = forked.request, forked.start
    zygote.forget()
    os._exit(_run_rank(request, lambda: rank.main(start, shipped.SHIPPED)))


def _send(control: socket.socket | None, message: ZygoteMessage) -> None:
    if isinstance(message, Broken):
        message = msgspec.structs.replace(message, error=message.error[-MAX_CHARS:])
    if control is not None:
        with suppress(OSError):  # an agent that is gone: its next incarnation is told by the rows
            control.send(msgspec.msgpack.encode(message))


class _IsRankError(BaseException):
    """Leaves the zygote's frames in the process of a new rank."""

    def __init__(self, request: Fork, start: RankStart) -> None:
        super().__init__(request.who)
        self.request, self.start = request, start


class _Zygote:
    """Serves one agent at a time. `control` connects to it; None while there is none."""

    def __init__(self, control: socket.socket, folder: str, alone_s: float, rank: ModuleType) -> None:
        self._control: socket.socket | None = control
        self._alone_s, self._rank = alone_s, rank
        self._incarnation = -1
        self._lost = 0.0
        self._living: dict[int, StartRef] = {}
        self._rows: dict[RankRef, Row] = {}
        """The newest process of each rank."""
        self._decode = msgspec.msgpack.Decoder(Fork).decode
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._listener: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.path.join(folder, f"{SOCKET}{os.getpid()}")
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._listener.bind(path)
            self._listener.listen()
        except OSError as error:
            print(f"this zygote cannot outlive its agent: {error}", file=sys.stderr, flush=True)
            self._listener = None

    def serve(self) -> None:
        """Fork ranks until nobody can request them any more, then end the process.

        Raises `_IsRankError` in the process of each rank.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        _send(self._control, Ready(os.getpid()))
        while True:
            heard = [end.fileno() for end in (self._control, self._listener) if end is not None]
            left = None if self._control is not None else max(0.0, self._lost + self._alone_s - time.monotonic())
            readable = select.select([*heard, self._wake[0]], [], [], left)[0]
            if self._wake[0] in readable:
                os.read(self._wake[0], 4096)
                self._reap()
            if self._control is not None and self._control.fileno() in readable:
                self._read()
            if self._listener is not None and self._listener.fileno() in readable:
                self._accept()
            if self._control is None and (self._listener is None or time.monotonic() >= self._lost + self._alone_s):
                os._exit(0)

    def _reap(self) -> None:
        while self._living:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if (who := self._living.pop(pid, None)) is not None:
                if (row := self._rows[who.ref]).who == who:
                    self._rows[who.ref] = msgspec.structs.replace(row, status=status)
                _send(self._control, Exited(who, pid, status))

    def _read(self, wait: bool = True) -> bool:
        """Take a request of the agent. Return whether there may be more."""
        assert self._control is not None
        try:
            parcel = parcels.receive(self._control, wait=wait)
        except BlockingIOError:
            return False
        except OSError:
            parcel = None
        if parcel is None:
            self._control.close()
            self._control, self._lost = None, time.monotonic()
            return False
        self._fork(StartRef.parse(parcel[0]), parcel[1])
        return True

    def _accept(self) -> None:
        """Accept a new incarnation of the agent. Requests of the previous one are done first."""
        assert self._listener is not None
        agent, _ = self._listener.accept()
        try:
            agent.settimeout(ADOPT_S)
            label, _ = parcels.receive(agent) or ("", None)
            agent.settimeout(None)
            incarnation = int(label.removeprefix(ADOPT)) if label.startswith(ADOPT) else -1
            if incarnation <= self._incarnation:
                agent.close()
                return
            while self._control is not None and self._read(wait=False):
                pass
            _send(self._control, Replaced())
            if self._control is not None:
                self._control.close()
            self._reap()
            self._control, self._incarnation, self._lost = agent, incarnation, time.monotonic()
            parcels.send(agent, ADOPT, msgspec.msgpack.encode(list(self._rows.values())))
        except (OSError, ValueError):
            agent.close()
            if self._control is agent:
                self._control = None

    def _fork(self, who: StartRef, data: bytes | None) -> None:
        try:
            if data is None:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            request = self._decode(data)
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                _send(self._control, Broken(who, "a preload has initialised CUDA, which does not survive a fork"))
                return
            start = self._rank.prepare(request.start)
            pid = os.fork()
        except OSError as error:
            _send(self._control, Broken(who, refused(error)))
            return
        if pid == 0:
            raise _IsRankError(request, start)
        self._living[pid] = who
        self._rows[who.ref] = Row(who, pid, request.start)
        _send(self._control, Forked(who, pid))

    def forget(self) -> None:
        """Release the zygote's resources in a rank's process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._listener):
            if end is not None:
                end.close()
        for fd in self._wake:
            os.close(fd)


def _run_rank(request: Fork, run: Callable[[], int]) -> int:
    """Make this process a rank's, run it, and end it as the interpreter would. Return its exit code."""
    code, imported = BROKEN_EXIT_CODE, set(sys.modules)
    try:
        disown_finalizers()
        parent = os.getppid()
        os.setsid()
        die_with_parent(parent)
        # Where Yama restricts ptrace, only ancestors could take a hung rank's stacks: py-spy is none.
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
        write_to(request.log)
        os.environ.update(request.env)
        code = run()
    except BaseException:
        traceback.print_exc()
    try:
        end_program()
        release_modules(imported)
    except BaseException:
        traceback.print_exc()
    flush_files()
    return code


if __name__ == "__main__":
    main()
