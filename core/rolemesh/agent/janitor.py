"""Removes what a dead agent or master leaves on its node: run as a script, by path, without the kernel.

``python -I -S janitor.py MARKER TMP [SHM TOKEN HOLD_S]`` detaches itself and waits for end of file on its standard
input, whose other end only its owner holds. That comes when the owner closes it or dies, however it dies. Then every
process whose environment holds MARKER is killed and TMP removed, at once. SHM, which holds snapshots, waits HOLD_S
seconds for the owner's next incarnation: it takes the folder over by writing another token into it.
"""

import fcntl
import os
import shutil
import signal
import sys
import time

GUARD_FILE = ".guard"
"""Whoever looks after a folder holds a shared lock on this file in it; the kernel drops the lock at its death."""
OWNER_FILE = ".owner"
"""Its first word is the token of the incarnation that the folder belongs to."""
POLL_S = 0.05


def marked(marker: bytes) -> list[int]:
    """Processes with `marker` (``NAME=value``) in the environment they were started with.

    A marker that ends in ``/`` stands for all that begin with it.
    """
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    entries = f.read().split(b"\0")
            except OSError:
                continue
            if marker in entries or (marker.endswith(b"/") and any(e.startswith(marker) for e in entries)):
                found.append(int(name))
    return found


def sweep(marker: str) -> None:
    """Kill what carries `marker` until nothing does (5 seconds at most)."""
    deadline = time.monotonic() + 5.0
    while (pids := marked(marker.encode())) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)


def guard(folder: str) -> int:
    """Hold the folder's guard until the returned descriptor is closed, by this process and those it forks."""
    fd = os.open(os.path.join(folder, GUARD_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def token_of(folder: str) -> str:
    """The token of the folder's owner; "" if it has none."""
    try:
        with open(os.path.join(folder, OWNER_FILE)) as f:
            return f.read().partition(" ")[0]
    except OSError:
        return ""


def remove(folder: str, token: "str | None" = None) -> None:
    """Remove `folder`; if `token` is given, only while the folder belongs to it. Safe against a take-over meanwhile."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if token is not None and token_of(folder) != token:
            return
        # By another name nobody takes it over any more, however long the removal takes.
        doomed = f"{folder}.{os.getpid()}.removed"
        os.rename(folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    except OSError:
        return
    finally:
        os.close(fd)


def hold(folder: str, token: str, hold_s: float) -> None:
    """Return when the folder has another owner or is gone; after `hold_s` seconds remove it."""
    deadline = time.monotonic() + hold_s
    while token_of(folder) == token:
        if time.monotonic() >= deadline:
            remove(folder, token)
            return
        time.sleep(POLL_S)


def main() -> None:
    marker, tmp, *held = sys.argv[1:]
    for folder in (tmp, *held[:1]):
        guard(folder)
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    while os.read(0, 4096):
        pass
    sweep(marker)
    shutil.rmtree(tmp, ignore_errors=True)
    if held:
        hold(held[0], held[1], float(held[2]))


if __name__ == "__main__":
    main()
