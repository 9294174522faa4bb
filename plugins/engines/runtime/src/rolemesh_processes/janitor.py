"""Removes what a dead agent or master leaves on its node: run as a script, by path, without the kernel.

``python -I -S janitor.py MARKER TMP OWNER [SHM TOKEN HOLD_S ALL PARENT START OVER]`` makes the folder TMP with the file
OWNER, detaches itself and waits for end of file on its standard input, whose other end only its owner holds. That
comes when the owner closes it or dies, however it dies. Then every process whose environment holds MARKER is killed and
TMP removed, at once. An owner makes no folder before its janitor runs: if it died in between, the folder would stay.

With SHM all waits for the owner's next incarnation, which takes it over by writing another token into SHM: snapshots
there, TMP, and processes, which go on. On a busy machine that takes as long as it takes to start a process. The wait
ends after HOLD_S seconds, when the process PARENT (which began at START) is gone, because it would start the next
incarnation, and when the file OVER exists, because the job has ended. Then whatever holds ALL in its environment is
killed, and both folders are removed.

A folder is removed under another name, which begins with its own. Each removal of a folder also ends those that
others began: an owner may be killed while it removes its folders.

While its owner lives it keeps the folders' files young, which cleaners of temporary folders would take for abandoned,
and notes in their guards that it does, in time since boot: clocks on the wall are set.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import stat
import sys
import threading
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
REMOVED = ".removed"
"""End of the name of a folder that is being removed."""
MAX_BYTES = 4096
BEAT_S = 10.0
YOUNG_S = 3600.0
"""Seconds between updates of the timestamps of all files in the folders."""
POLL_S = 0.05
LOOK_S = 1.0
"""Seconds between looks for the result of the job."""
EXEC_S = 1.0
"""Maximum seconds that one search waits for processes in the middle of exec."""


def marked(marker: bytes) -> list[int]:
    """Return the processes with `marker` (``NAME=value``) in the environment they were started with.

    A marker that ends in ``/`` matches all values that begin with it.
    """
    found = []
    deadline = time.monotonic() + EXEC_S
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            entries = environment(int(name), deadline)
            if marker in entries or (marker.endswith(b"/") and any(e.startswith(marker) for e in entries)):
                found.append(int(name))
    return found


def environment(pid: int, deadline: float = 0.0) -> list[bytes]:
    """Return the environment that the process was started with; [] if it is gone or another user's.

    In the middle of exec a process has none yet. Then it is read again until `deadline`.
    """
    try:
        while True:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if (read := f.read()) or time.monotonic() >= deadline or not begins(pid):
                    return read.split(b"\0")
            time.sleep(0.001)
    except OSError:
        return []


def begins(pid: int) -> bool:
    """Return whether the process is in the middle of exec: it has memory, but no place of its environment."""
    with open(f"/proc/{pid}/stat", errors="replace") as f:
        fields = f.read().rpartition(")")[2].split()
    return fields[0] not in "ZX" and int(fields[20]) > 0 and int(fields[48]) == 0


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
    except (ValueError, RecursionError):
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


def make(folder: str, owner: bytes) -> None:
    """Make `folder`, if it is missing, with the owner file `owner`. Raises `OSError`, also if it is another user's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if os.lstat(folder).st_uid != os.geteuid():
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), folder)
    new = os.path.join(folder, f"{OWNER_FILE}.{os.getpid()}")
    with open(new, "xb") as f:
        f.write(owner)
    os.replace(new, os.path.join(folder, OWNER_FILE))


def remove(folder: str, token: "str | None", before: "Callable[[], None]" = lambda: None) -> None:
    """Remove `folder` if it still belongs to `token` (None: to any; "": to nobody), after calling `before`. Safe
    against a simultaneous take-over, and against other searches for orphaned folders.

    What others have begun to remove under this name is removed, too.
    """
    with contextlib.suppress(OSError), locked(folder) as fd:
        at = os.fstat(fd)
        same = at.st_ino == os.lstat(folder).st_ino
        if same and at.st_uid == os.geteuid() and (token is None or token_of(folder) == token):
            before()
            # By another name nobody takes it over any more, however long the removal takes.
            doomed = f"{folder}.{os.getpid()}{REMOVED}"
            os.rename(folder, doomed)
            empty(doomed)
    place, name = os.path.split(folder)
    for other in os.listdir(place):
        if other.startswith(f"{name}.") and other.endswith(REMOVED):
            end_removal(os.path.join(place, other))


def end_removal(doomed: str, how: int = fcntl.LOCK_EX) -> None:
    """Remove the folder `doomed`, whose removal somebody has begun. With ``LOCK_EX | LOCK_NB``, not if somebody is at
    it."""
    with contextlib.suppress(OSError), locked(doomed, how) as fd:
        if os.fstat(fd).st_uid == os.geteuid():
            empty(doomed)


def empty(doomed: str) -> None:
    """Remove `doomed`. Its owner file goes last: who finds the rest must see whose it is."""
    for name in os.listdir(doomed):
        path = os.path.join(doomed, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif name != OWNER_FILE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    shutil.rmtree(doomed, ignore_errors=True)


def lives(pid: int, start: int) -> bool:
    """Return whether the process `pid` that began at `start` (clock ticks since boot) exists."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and int(fields[19]) == start


def appears(path: str) -> "Callable[[], bool]":
    """Return a function that returns whether the file `path` exists. It does not wait for the file system.

    The file is in the run's folder. That may be on another machine, which may hang.
    """
    found = threading.Event()

    def look() -> None:
        while not os.path.exists(path):
            time.sleep(LOOK_S)
        found.set()

    threading.Thread(target=look, daemon=True).start()
    return found.is_set


def hold(folder: str, token: str, hold_s: float, hopeless: "Callable[[], bool]", end: "Callable[[], None]") -> bool:
    """Return whether the folder gets another owner within `hold_s` seconds. If not, or if that is `hopeless`, call
    `end` and remove it.

    A folder of nobody is treated alike: its owner died before it wrote the owner file, or somebody has removed that.
    """
    deadline = time.monotonic() + hold_s
    while os.path.isdir(folder) and (owner := token_of(folder)) in ("", token):
        if time.monotonic() >= deadline or hopeless():
            remove(folder, owner, end)
            break
        time.sleep(POLL_S)
    return token_of(folder) not in ("", token)


def maintain(folders: "list[str]", guards: "dict[str, int]") -> None:
    """Hold the guards of those of `folders` that exist, and record that they are maintained now."""
    for folder in folders:
        try:
            if folder not in guards or not os.fstat(guards[folder]).st_nlink:  # it is new, or somebody has removed it
                fresh = guard(folder)
                if folder in guards:
                    os.close(guards[folder])
                guards[folder] = fresh
        except OSError:
            continue
        beat(guards[folder])


def watch(folders: "list[str]", guards: "dict[str, int]") -> None:
    """Return when the owner is gone; maintain its folders meanwhile."""
    touched = time.monotonic()
    # Until the owner has made them all, it looks for new ones: nobody else holds their guards when the owner dies.
    while not select.select([0], [], [], BEAT_S if len(guards) == len(folders) else POLL_S)[0] or os.read(0, 4096):
        maintain(folders, guards)
        if time.monotonic() - touched > YOUNG_S:
            touched = time.monotonic()
            for folder in folders:
                keep_young(folder)
    maintain(folders, guards)


def main() -> None:
    marker, tmp, owner, *held = sys.argv[1:]
    folders, guards = [tmp, *held[:1]], dict[str, int]()
    try:
        make(tmp, owner.encode())
        maintain(folders, guards)
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    watch(folders, guards)
    if held:
        folder, token, hold_s, everything, parent, start, result = held
        over = appears(result)

        def end() -> None:
            sweep(everything)
            remove(tmp, None)

        if hold(folder, token, float(hold_s), lambda: over() or not lives(int(parent), int(start)), end):
            if owner_of(folder).get("tmp") != tmp:  # the next incarnation came before this one had said what it has
                remove(tmp, None)
            return
        remove(folder, token)
    sweep(marker)
    remove(tmp, None)


if __name__ == "__main__":
    main()
