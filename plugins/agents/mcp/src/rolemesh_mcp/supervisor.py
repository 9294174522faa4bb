"""Runs a server, and ends it with all its descendants when the rank ends: ``python supervisor.py PARENT COMMAND…``.

Descendants that leave the server's session become children of this process (``PR_SET_CHILD_SUBREAPER``), so they are
found, too. The module imports the standard library only, because it starts once per episode.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 1.0


def main() -> None:
    """Start the command, wait for its end, and end with its exit code."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, end)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        return
    try:
        server = os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGTERM])
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
    # Of the pipes to the client, only the server keeps an end.
    for fd in (0, 1):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    while True:
        pid, status = os.wait()
        if pid == server:
            kill_descendants()
            os._exit(max(0, os.waitstatus_to_exitcode(status)) or (1 if status else 0))


def end(*_: object) -> None:
    """End all descendants, and this process."""
    kill_descendants()
    os._exit(1)


def kill_descendants() -> None:
    """Kill children until there is none. Children of the killed ones become children of this process."""
    until = time.monotonic() + GRACE_S
    while (found := children()) and time.monotonic() < until:
        for pid in found:
            os.kill(pid, signal.SIGKILL)  # none of them is reaped yet, so the number is still its own
        for _ in found:
            os.wait()


def children() -> list[int]:
    """Return the children of this process."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    main()
