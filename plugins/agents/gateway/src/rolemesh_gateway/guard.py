"""Runs one program, keeps the end of its output, and ends all its processes. A script that needs only Python itself.

``python -I -S guard.py CONTROL CONFIG``: two file descriptors. CONTROL is a socket to the rank, and CONFIG is a file
with the JSON of `Config`. The guard ends the program when the rank says so, when the rank dies, which closes the
socket, and at the limits. It then removes the program's folder, and writes the result to CONTROL as JSON.

The guard is the subreaper of the program's processes: those that lose their parent become its children. When it has no
child left, no process of the program is left, also if it has left its process group and session.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any, NoReturn, TypedDict

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
"""Signals that do not end the guard: it ends when the socket closes."""
LOOK_S = 0.5
"""Seconds between two looks at the number of processes."""
DRAIN_S = 0.2
"""Seconds for the rest of the output after the last process has ended."""
KILL_S = 10.0
"""Seconds after which the guard gives up on processes that SIGKILL does not end."""


class Config(TypedDict):
    """The command and its limits: seconds, processes, and kept bytes of stdout and of stderr."""

    command: list[str]
    variables: dict[str, str]
    folder: str
    stdin: str
    seconds: float
    grace_s: float
    processes: int
    kept: int


class Tail:
    """The end of a stream of bytes, and the number of bytes before it."""

    def __init__(self, most: int) -> None:
        self._most, self._data, self.cut = most, bytearray(), 0

    def add(self, data: bytes) -> None:
        """Add bytes."""
        self._data += data
        if len(self._data) > 2 * self._most:
            self.trim()

    def trim(self) -> None:
        """Drop the bytes before the end."""
        over = len(self._data) - self._most
        if over > 0:
            del self._data[:over]
            self.cut += over

    def text(self) -> str:
        """Return the end as text."""
        self.trim()
        return self._data.decode("utf-8", "replace")


class Guard:
    """The guard of one program."""

    def __init__(self, control: socket.socket, config: Config) -> None:
        self._control, self._config = control, config
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._tails: dict[int, Tail] = {}
        self._main = 0
        self._code: int | None = None
        self._ended = ""
        self._poll = select.poll()

    def run(self) -> dict[str, Any]:
        """Run the program to its end, and return the result."""
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        out, err = self._start()
        self._watch()
        if self._ended in ("seconds", "asked"):
            self._ask_to_end()
        self._kill()
        self._drain()
        told = {"code": self._code, "ended": self._ended, "output": self._tails[out].text()}
        return {**told, "errors": self._tails[err].text(), "cut": self._tails[out].cut + self._tails[err].cut}

    def _start(self) -> tuple[int, int]:
        source = os.memfd_create("stdin")
        os.write(source, self._config["stdin"].encode("utf-8", "replace"))
        os.lseek(source, 0, os.SEEK_SET)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self._main = os.fork()
        if not self._main:
            self._become(source, out_end, err_end)
        for fd in (source, out_end, err_end):
            os.close(fd)
        for fd in (out, err):
            os.set_blocking(fd, False)
            self._tails[fd] = Tail(self._config["kept"])
            self._poll.register(fd, select.POLLIN)
        self._poll.register(self._control.fileno(), select.POLLIN)
        # The system tells of the program's end in the same poll.
        self._pidfd = os.pidfd_open(self._main)
        self._poll.register(self._pidfd, select.POLLIN)
        return out, err

    def _become(self, source: int, out: int, err: int) -> NoReturn:
        try:
            for number in IGNORED:
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.dup2(source, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.chdir(self._config["folder"])
            os.execvpe(self._config["command"][0], self._config["command"], self._config["variables"])
        except OSError as error:
            os.write(err, f"cannot run {self._config['command'][0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _watch(self) -> None:
        """Wait for the end of the program, for the rank, or for a limit."""
        until = time.monotonic() + self._config["seconds"]
        looked = time.monotonic()
        while not self._ended:
            now = time.monotonic()
            if now >= until:
                self._ended = "seconds"
                break
            ready = self._poll.poll(min(LOOK_S, until - now) * 1000)
            for fd, _ in ready:
                if fd == self._control.fileno():
                    self._ended = "asked" if self._control.recv(1) else "alone"
                elif fd != self._pidfd:
                    self._read(fd)
            if self._reap():
                return
            if time.monotonic() - looked >= LOOK_S:
                looked = time.monotonic()
                if len(descendants(os.getpid())) > self._config["processes"]:
                    self._ended = "processes"

    def _read(self, fd: int) -> bool:
        """Read some output. Return False at its end, or if there is none now."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)
            return False
        self._tails[fd].add(data)
        return True

    def _reap(self) -> bool:
        """Reap what has ended. Return True if the program itself has ended."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._main:
                    self._code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            pass
        return self._code is not None

    def _ask_to_end(self) -> None:
        """Send SIGTERM, and wait for the program's end until the grace is over or the rank has died."""
        signalled(descendants(os.getpid()), signal.SIGTERM)
        until = time.monotonic() + self._config["grace_s"]
        while not self._reap() and (left := until - time.monotonic()) > 0:
            for fd, _ in self._poll.poll(min(LOOK_S, left) * 1000):
                if fd == self._control.fileno():
                    if not self._control.recv(1):
                        return
                elif fd != self._pidfd:
                    self._read(fd)

    def _kill(self) -> None:
        """End all processes. First they are stopped, so that none can fork while others are killed."""
        until = time.monotonic() + KILL_S
        while time.monotonic() < until:
            stopped: set[int] = set()
            while new := set(descendants(os.getpid())) - stopped:
                signalled(new, signal.SIGSTOP)
                stopped |= new
            signalled(stopped, signal.SIGKILL)
            self._reap()
            if not descendants(os.getpid()):
                return
            time.sleep(0.005)

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_S
        for fd in self._tails:
            while time.monotonic() < until and self._read(fd):
                pass


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`, also those that have ended and are not reaped yet."""
    found, open_ = [], [pid]
    while open_:
        parent = open_.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(each) for each in file.read().split()]
                found += children
                open_ += children
        except OSError:
            continue
    return found


def signalled(pids: Any, number: int) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def main() -> None:
    """Run the program that the arguments name."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    control_fd, config_fd = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control_fd, False)
    with open(config_fd, encoding="utf-8") as file:
        config = json.load(file)
    control = socket.socket(fileno=control_fd)
    result = Guard(control, config).run()
    shutil.rmtree(config["folder"], ignore_errors=True)
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(result).encode())
    # The end of this process closes the socket, so the rank need not wait long for it.
    os._exit(0)


if __name__ == "__main__":
    main()
