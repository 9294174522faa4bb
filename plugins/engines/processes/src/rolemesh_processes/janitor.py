"""Removes what a dead agent or master leaves on its node: run as a script, by path, without the kernel.

``python -I -S janitor.py MARKER TMP [SHM TOKEN HOLD_S ALL PARENT START]`` detaches itself and waits for end of file on
its standard input, whose other end only its owner holds. That comes when the owner closes it or dies, however it dies.
Then every process whose environment holds MARKER is killed and TMP removed, at once.

With SHM all waits HOLD_S seconds for the owner's next incarnation, which takes it over by writing another token into
SHM: snapshots there, TMP, and processes, which go on. If none comes, or the process PARENT (which began at START), who
would start it, is gone, whatever holds ALL in its environment is killed, and both folders are removed.

While its owner lives it keeps the folders' files young, which cleaners of temporary folders would take for abandoned,
and notes in their guards that it does, in time since boot: clocks on the wall are set.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX = "rolemesh-"
"""Prefix of the names of all folders in shared places."""
GUARD_FILE = ".guard"
"""Lock file in a folder. The process that maintains the folder holds a shared lock on it, which the kernel releases at
its death.

Its content is the time of the last maintenance, in seconds since boot.
"""
OWNER_FILE = ".owner"
"""File with the owner of a folder, as JSON. A folder without it belongs to nobody and is left alone."""
OWNER = "rolemesh"
MAX_BYTES = 4096
BEAT_S = 10.0
YOUNG_S = 3600.0
"""Seconds between updates of the timestamps of all files in the folders."""
POLL_S = 0.05


def marked(marker: bytes) -> list[int]:
    """Return the processes with `marker` (``NAME=value``) in the environment they were started with.

    A marker that ends in ``/`` matches all values that begin with it.
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
    """Kill the processes with `marker` until none is left (5 seconds at most)."""
    deadline = time.monotonic() + 5.0
    while (pids := marked(marker.encode())) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)


def guard(folder: str) -> int:
    """Hold the folder's guard until the returned descriptor is closed, by this process and those that it forks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(os.path.join(folder, GUARD_FILE), flags, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    beat(fd)
    return fd


def beat(guard: int) -> None:
    """Record that the folder of `guard` is maintained now."""
    with contextlib.suppress(OSError):  # full: it counts as abandoned a little earlier, once its owner is dead
        os.pwrite(guard, b"%020.3f" % time.clock_gettime(time.CLOCK_BOOTTIME), 0)


def read(folder: str, name: str) -> bytes:
    """Return the content of a small file of ours in `folder`; b"" if it is missing, another user's, a pipe, a link, or
    too large."""
    try:
        fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        at = os.fstat(fd)
        if not stat.S_ISREG(at.st_mode) or at.st_uid != os.geteuid() or at.st_size > MAX_BYTES:
            return b""
        return os.read(fd, MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def owner_of(folder: str) -> "dict[str, object]":
    """Return the content of the folder's owner file: {} unless it is one of ours."""
    try:
        found = json.loads(read(folder, OWNER_FILE))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("owner") == OWNER else {}


def token_of(folder: str) -> str:
    """Return the token of the folder's owner; "" if it has none."""
    return str(owner_of(folder).get("token", ""))


def keep_young(folder: str) -> None:
    """Update the timestamps in `folder`, because cleaners remove old files."""
    try:
        names = ["", *os.listdir(folder)]
    except OSError:
        return
    for name in names:
        try:
            os.utime(os.path.join(folder, name), follow_symlinks=False)
        except OSError:
            continue


@contextlib.contextmanager
def locked(folder: str, how: int = fcntl.LOCK_EX) -> "Iterator[int]":
    """Hold the lock of the folder itself, under which it is removed or taken over. Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield fd
    finally:
        os.close(fd)


def remove(folder: str, token: "str | None", before: "Callable[[], None]" = lambda: None) -> None:
    """Remove `folder` if it still belongs to `token` (None: to any), after calling `before`. Safe against a
    simultaneous take-over, and against other searches for orphaned folders."""
    try:
        with locked(folder) as fd:
            if os.fstat(fd).st_uid != os.geteuid() or (token is not None and token_of(folder) != (token or None)):
                return
            before()
            # By another name nobody takes it over any more, however long the removal takes.
            doomed = f"{folder}.{os.getpid()}.removed"
            os.rename(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
    except OSError:
        return


def lives(pid: int, start: int) -> bool:
    """Return whether the process `pid` that began at `start` (clock ticks since boot) exists."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start


def hold(folder: str, token: str, hold_s: float, parent: "tuple[int, int]", end: "Callable[[], None]") -> bool:
    """Return whether the folder gets another owner within `hold_s` seconds. If not, call `end` and remove it."""
    deadline = time.monotonic() + hold_s
    while (owner := token_of(folder)) == token:
        if time.monotonic() >= deadline or not lives(*parent):
            remove(folder, token, end)
            return token_of(folder) not in ("", token)
        time.sleep(POLL_S)
    return bool(owner)


def watch(folders: "list[str]", guards: "list[int]") -> None:
    """Return when the owner is gone; maintain its folders meanwhile."""
    touched = time.monotonic()
    while True:
        if select.select([0], [], [], BEAT_S)[0]:
            if not os.read(0, 4096):
                return
            continue
        for i, folder in enumerate(folders):
            try:
                if not os.fstat(guards[i]).st_nlink:  # somebody has removed it, or all of the folder
                    fresh = guard(folder)
                    os.close(guards[i])
                    guards[i] = fresh
            except OSError:
                continue
            beat(guards[i])
        if time.monotonic() - touched > YOUNG_S:
            touched = time.monotonic()
            for folder in folders:
                keep_young(folder)


def main() -> None:
    marker, tmp, *held = sys.argv[1:]
    folders = [tmp, *held[:1]]
    guards = [guard(folder) for folder in folders]
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    watch(folders, guards)
    if held:
        folder, token, hold_s, everything, parent, start = held

        def end() -> None:
            sweep(everything)
            remove(tmp, None)

        if hold(folder, token, float(hold_s), (int(parent), int(start)), end):
            return
    sweep(marker)
    remove(tmp, None)


if __name__ == "__main__":
    main()
