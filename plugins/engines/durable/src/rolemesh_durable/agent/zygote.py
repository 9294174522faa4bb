"""A clean, preloaded process that forks ranks in milliseconds: ``python -m rolemesh_durable.agent.zygote FD``.

It holds one thread, no sockets but FD, no CUDA context. FD is a SOCK_SEQPACKET pair with the agent: the agent sends
`Fork` (see `agent.parcels`), the zygote answers `Ready` or `Broken` once, then `Forked` and `Exited`, or
`Broken` for a rank that could not be forked: the others live on. It dies with the agent's thread that started it, and
its ranks die with it (PR_SET_PDEATHSIG).
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
import traceback
from collections.abc import Callable
from functools import partial
from importlib.metadata import distribution
from types import ModuleType
from typing import Literal, TypeAlias

import msgspec

from rolemesh_durable.agent import parcels
from rolemesh_durable.agent.output import write_to
from rolemesh_durable.agent.refusals import refused

__all__ = ["Broken", "Exited", "Fork", "Forked", "Making", "Ready", "ZygoteMessage", "die_with_parent"]

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
EVERY_RANK = (
    "email.parser",
    "rolemesh.builtin.function",
    "rolemesh_durable.dataplane.shm_transport",
    "rolemesh_durable.dataplane.tcp_transport",
    "rolemesh_durable.rank.main",
)
"""What most ranks import: here, once."""
MAX_CHARS = 20_000
"""Of what went wrong: a message on FD is bounded."""


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork a rank: `start` is an encoded `RankStart`, `log` gets its output, `env` is added to its own."""

    key: str
    start: bytes
    log: str
    env: dict[str, str]


class Making(msgspec.Struct, frozen=True, tag=True):
    """What the zygote's environment is being made of; see `rolemesh_durable.agent.environment`."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All preloads are imported. `threads` above 1 means that a preload started some: a fork may then hang."""

    threads: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """A preload could not be imported, or a fork was refused; `key` is "" for the former.

    With the cause "environment" it never got as far: its environment could not be made.
    """

    key: str
    error: str
    cause: Literal["start", "environment"] = "start"


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A rank's process exists."""

    key: str
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A rank's process is gone and reaped; `status` is that of ``waitpid``."""

    key: str
    pid: int
    status: int


ZygoteMessage: TypeAlias = Making | Ready | Broken | Forked | Exited


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends (Linux); leave at once if it has already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in sys.argv[3:]:
        try:
            importlib.import_module(module)
        except BaseException:
            _send(control, Broken("", f"preload {module!r} failed:\n{traceback.format_exc()}"))
            return
    for module in EVERY_RANK:
        importlib.import_module(module)
    distribution("rolemesh")  # what is installed is listed once, not by every rank
    gc.collect()
    gc.freeze()
    _send(control, Ready(len(os.listdir("/proc/self/task"))))
    _serve(control, importlib.import_module("rolemesh_durable.rank.main"))


def _send(control: socket.socket, message: ZygoteMessage) -> None:
    if isinstance(message, Broken):
        message = msgspec.structs.replace(message, error=message.error[-MAX_CHARS:])
    control.send(msgspec.msgpack.encode(message))


def _serve(control: socket.socket, rank: ModuleType) -> None:
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    ranks: dict[int, str] = {}
    decode = msgspec.msgpack.Decoder(Fork).decode
    while True:
        readable = select.select([control.fileno(), wake_read], [], [])[0]
        if wake_read in readable:
            os.read(wake_read, 4096)
            while ranks:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    break
                if pid in ranks:
                    _send(control, Exited(ranks.pop(pid), pid, status))
        if control.fileno() in readable:
            parcel = parcels.receive(control)
            if parcel is None:
                os._exit(0)
            key, data = parcel
            try:
                if data is None:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                request = decode(data)
                torch = sys.modules.get("torch")
                if torch is not None and torch.cuda.is_initialized():
                    _send(control, Broken(key, "a preload has initialised CUDA, which does not survive a fork"))
                    continue
                start = rank.prepare(request.start)
                pid = os.fork()
            except OSError as error:
                _send(control, Broken(key, refused(error)))
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                _become_rank(request, partial(rank.main, start), control, (wake_read, wake_write))
            ranks[pid] = key
            _send(control, Forked(key, pid))


def _become_rank(request: Fork, run: Callable[[], int], control: socket.socket, wake: tuple[int, int]) -> None:
    code = 70
    try:
        parent = os.getppid()
        os.setsid()
        die_with_parent(parent)
        # Where Yama restricts ptrace, only ancestors could take a hung rank's stacks: py-spy is none.
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
        control.close()
        for fd in wake:
            os.close(fd)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        write_to(request.log)
        os.environ.update(request.env)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
