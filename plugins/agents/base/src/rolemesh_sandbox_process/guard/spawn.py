"""Starts a command within its limits, below a process that collects its descendants and reports its end."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from rolemesh_sandbox_process.guard.kernel import (
    die_with,
    drop_capabilities,
    fixed_addresses,
    no_new_privileges,
    subreaper,
    untraceable,
)
from rolemesh_sandbox_process.guard.namespaces import enter, loopback, prepare
from rolemesh_sandbox_process.guard.seccomp import restrict

__all__ = ["BOOT", "HELPERS", "STATUS", "Started", "inside", "start"]

STATUS: Final = 9
"""Descriptor of a socket to the guard. The process above a command sends its exit status, or ``!`` and an error.
Before, it sends the listening socket of a client.
"""
HELPERS: Final = 1
"""Maximum number of our own processes below the started one and above the command."""
BOOT: Final = "import sys; sys.path.append(sys.argv[1]); from rolemesh_sandbox_process.guard.{0} import {1}; {1}()"
"""Program for ``python -I -S -c``. The first argument is the folder of the package."""
_FILES = 256
_BACKLOG = 512
"""Maximum number of connections of a client that nobody has accepted."""


class Started(NamedTuple):
    """A started command: the number of the process above it, and the descriptor of its status."""

    pid: int
    status: int


def start(setup: Mapping[str, Any], command: Sequence[str], files: Mapping[int, int]) -> Started:
    """Start `command`. `files` maps its descriptors to those of this process.

    `setup` has: `isolation` (namespaces, prefix, none), `prefix`, `root` (of the command's files; "": the machine's),
    `folder`, `inside` (the path of the folder for the command), `keep`, `limits`, `env`, `package`, `port` (of the
    listening socket that the guard gets; 0: none).
    """
    reading, writing = (each.detach() for each in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    guard = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Started(pid, reading)
    try:
        die_with(guard)
        os.setsid()
        _expendable()
        _redirect({**files, STATUS: writing})
        _begin(setup, command)
    except BaseException as error:
        _fail(error)


def inside() -> NoReturn:
    """Be the process above a command, as the program that a prefix such as ``bwrap`` starts."""
    try:
        setup, command = json.loads(sys.argv[2])
        subreaper()
        _supervise(setup, command)
    except BaseException as error:
        _fail(error)


def _begin(setup: Mapping[str, Any], command: Sequence[str]) -> NoReturn:
    if setup["isolation"] == "prefix":
        told = json.dumps([{**setup, "prefix": []}, command])
        boot = [sys.executable, "-I", "-S", "-c", BOOT.format("spawn", "inside"), setup["package"], told]
        program = [*setup["prefix"], *boot]
        _default_signals()
        os.execve(program[0], program, {})
    if setup["isolation"] == "none":
        subreaper()
        _supervise(setup, command)
    enter(setup["limits"]["network"])
    die_with(os.getppid())
    first = os.fork()
    if first:
        _silent()
        os.waitpid(first, 0)
        os._exit(0)
    die_with(0)  # a parent outside of the namespace has no number
    prepare(setup)
    _supervise(setup, command)


def _supervise(setup: Mapping[str, Any], command: Sequence[str]) -> NoReturn:
    """Start the command, wait for its end, and report it.

    If this is the first process of a namespace, its end kills all others there. Commands of the same user cannot trace
    it, nor take the descriptor of its status (pidfd_getfd(2)). A command that starts can be traced again.
    """
    untraceable()
    mine = os.getpid()
    if setup["port"]:
        _listen(setup["port"])
    pid = os.fork()
    if not pid:
        _execute(setup, command, mine)
    _silent()
    while True:
        ended, status = os.wait()
        if ended == pid:
            with suppress(OSError):
                os.write(STATUS, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)


def _listen(port: int) -> None:
    """Send the guard a socket that listens on the loopback interface of this namespace.

    Raises `OSError` if the interface is down, and this process may not start it.
    """
    loopback()
    with (
        socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as listener,
        socket.socket(fileno=os.dup(STATUS)) as status,
    ):
        socket.create_connection(listener.getsockname()).close()
        listener.accept()[0].close()
        socket.send_fds(status, [b"+"], [listener.fileno()])


def _execute(setup: Mapping[str, Any], command: Sequence[str], parent: int) -> NoReturn:
    try:
        die_with(parent)
        os.setsid()
        os.chdir(setup["inside"])
        _limit(setup)
        if setup["user"]:
            _become(setup["user"])
            die_with(parent)  # a change of the user has cleared it
        fixed_addresses()
        no_new_privileges()
        if setup["isolation"] == "namespaces":
            drop_capabilities()
        restrict(network=setup["limits"]["network"], namespaces=setup["isolation"] != "none")
        _default_signals()
        os.set_inheritable(STATUS, False)
    except BaseException as error:
        _fail(error)
    try:
        os.execvpe(command[0], list(command), setup["env"])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        os.write(2, f"{command[0]}: {why}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _limit(setup: Mapping[str, Any]) -> None:
    """Set the limits that the kernel enforces for each process."""
    limits = setup["limits"]
    memory, disk = int(limits["memory_mb"] * 1e6), int(limits["disk_mb"] * 1e6)
    # A file that is as large as the folder may be would also let the guard end the command, if it looks in time.
    wanted = {"CORE": 0, "DATA": memory, "FSIZE": disk * 15 // 16, "NOFILE": _FILES}
    wanted["NPROC"] = _threads(limits["processes"], alone=setup["alone"] and (setup["user"] or _release() >= (5, 14)))
    for name, value in wanted.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def _threads(processes: int, *, alone: bool) -> int:
    """Return the maximum number of a user's threads, at which the kernel lets no process of the sandbox fork.

    If not `alone`, as in a namespace of users before Linux 5.14, all other threads of the user count, too. The limit
    then only stops a flood of processes.
    """
    own = 4 * processes + 16
    if alone:
        return own
    others = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                others += len(os.listdir(f"/proc/{name}/task"))
    return others + own + 256


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _release() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def _expendable() -> None:
    """Let the kernel end the command, rather than the job, when the machine has no memory left."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _redirect(files: Mapping[int, int]) -> None:
    """Give descriptors their numbers, and close all others."""
    moved = {target: os.dup2(source, 100 + target) for target, source in files.items()}
    for target, source in moved.items():
        os.dup2(source, target)
    last = -1
    for target in (*sorted(files), 65536):
        if last + 1 < target:  # Python 3.11 closes all for an empty range that begins with 0
            os.closerange(last + 1, target)
        last = target


def _silent() -> None:
    """Close all descriptors but that of the status, so that only the command holds the pipes."""
    os.closerange(0, STATUS)


def _default_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _fail(error: BaseException) -> NoReturn:
    why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    with suppress(OSError):
        os.write(STATUS, f"!{why}".encode(errors="replace"))
    os._exit(125)
