"""Private folders and processes that share their owner's fate; an agent's files outlive it by a moment.

An agent's folder in shared memory has a name made of job and agent. The agent's next incarnation takes it over with
all that is in it; if none comes, the janitor of the dead one removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rolemesh.agent import janitor
from rolemesh.errors import BackendError

__all__ = ["MARKER", "AgentKeeper", "Keeper", "remove_agent", "remove_job", "remove_orphans", "shm_folder"]

MARKER = "ROLEMESH_JOB"
"""Environment variable that marks every process of one job on one agent: ``job/agent/incarnation``."""
ORPHAN_S = 60.0
"""How long a folder that nobody looks after must have been untouched before it is removed."""
KILL_S = 10.0


def shm_folder(job_id: str, agent: str) -> Path:
    """Where an agent of a job keeps its files: on tmpfs, if there is one."""
    return _fast() / f"rolemesh-{job_id}-{agent}"


class Keeper:
    """A private folder `tmp` (mode 0700, for sockets and temporary files) and marked processes, gone with their owner.

    `mark` goes into the environment of child processes. The owner calls `close` when it ends well; when it dies, its
    janitor does the same.
    """

    def __init__(self, job_id: str, owner: str, number: int | None = None, hold: tuple[str, ...] = ()) -> None:
        """`hold`: a folder, the token under which this process owns it, and for how long it waits for the next one."""
        self.tmp = Path(tempfile.mkdtemp(prefix=f"rm-{job_id}-", dir="/tmp"))
        self.mark = f"{job_id}/{owner}/{os.getpid() if number is None else number}"
        self._open = [janitor.guard(str(folder)) for folder in (self.tmp, *hold[:1])]
        self._open.append(_start_janitor(f"{MARKER}={self.mark}", str(self.tmp), *hold))

    def close(self) -> None:
        """Kill every process with the mark and remove the folders, now. Idempotent."""
        janitor.sweep(f"{MARKER}={self.mark}")
        janitor.remove(str(self.tmp))
        self._release()

    def _release(self) -> None:
        while self._open:
            os.close(self._open.pop())


class AgentKeeper(Keeper):
    """A keeper with the agent's folder in shared memory, `shm`, taken over from an earlier incarnation if there is one.

    Before it is taken over, whatever is left of earlier incarnations is killed: the agent's process, and all that it
    marked. Raises `BackendError` if the folder belongs to another user, or to a later incarnation (this one has been
    replaced and must end). `hold_s`: how long the folder waits for the next incarnation after this one's death.
    """

    def __init__(self, job_id: str, agent: str, incarnation: int = 0, hold_s: float = 10.0) -> None:
        remove_orphans()
        self.shm = shm_folder(job_id, agent)
        self._token = secrets.token_hex(8)
        with _locked(self.shm):
            _replace_owner(self.shm, f"{MARKER}={job_id}/{agent}/", incarnation)
            line = f"{self._token} {incarnation} {os.getpid()} {_start_time(os.getpid())} {hold_s}"
            (self.shm / f"{janitor.OWNER_FILE}.new").write_text(line)
            os.replace(self.shm / f"{janitor.OWNER_FILE}.new", self.shm / janitor.OWNER_FILE)
            super().__init__(job_id, agent, incarnation, (str(self.shm), self._token, str(hold_s)))

    def close(self) -> None:
        """As `Keeper.close`, and `shm` with it, unless a later incarnation has taken it over."""
        janitor.sweep(f"{MARKER}={self.mark}")
        janitor.remove(str(self.shm), self._token)
        super().close()


def remove_agent(job_id: str, agent: str) -> None:
    """Kill what is marked as this agent's and remove its folder, whoever owns it: the job is over, or its node lost."""
    janitor.sweep(f"{MARKER}={job_id}/{agent}/")
    janitor.remove(str(shm_folder(job_id, agent)))


def remove_job(job_id: str) -> None:
    """Kill what is marked as this job's and remove its agents' folders on this machine: the job is over."""
    janitor.sweep(f"{MARKER}={job_id}/")
    for folder in _fast().glob(f"rolemesh-{job_id}-*"):
        janitor.remove(str(folder))


def remove_orphans() -> None:
    """Remove this user's folders of jobs that no longer live: neither owner nor janitor holds their guard."""
    for folder in [*_fast().glob("rolemesh-*"), *Path("/tmp").glob("rm-*")]:
        with contextlib.suppress(OSError):
            at = folder.lstat()
            token = janitor.token_of(str(folder))
            if stat.S_ISDIR(at.st_mode) and at.st_uid == os.geteuid() and _is_orphan(folder):
                janitor.remove(str(folder), token)


def _fast() -> Path:
    return Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")


def _is_orphan(folder: Path) -> bool:
    touched = max(entry.lstat().st_mtime for entry in (folder, *folder.iterdir()))
    if time.time() - touched < ORPHAN_S:
        return False
    with contextlib.suppress(FileNotFoundError), (folder / janitor.GUARD_FILE).open("rb") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make `folder` if it is not there, and keep everybody else from taking it over or removing it."""
    while True:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _foreign(folder, f"it cannot be opened: {error.strerror}") from error
        try:
            at = os.fstat(fd)
            if at.st_uid != os.geteuid() or at.st_mode & 0o077:
                raise _foreign(folder, f"user {at.st_uid}, mode {at.st_mode & 0o777:o}")
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                same = os.stat(folder, follow_symlinks=False).st_ino == at.st_ino
            except FileNotFoundError:
                same = False
            if same:
                yield
                return
        finally:
            os.close(fd)


def _foreign(folder: Path, how: str) -> BackendError:
    return BackendError(
        f"the agent's folder is not a private one of this user: {how}",
        where=str(folder),
        remedy="somebody else made it; remove it, or ask its owner to",
    )


def _replace_owner(folder: Path, marker: str, incarnation: int) -> None:
    """See that no earlier incarnation acts in `folder` any more."""
    try:
        words = (folder / janitor.OWNER_FILE).read_text().split()
    except FileNotFoundError:
        return
    _, number, pid, started, _ = words
    if int(number) > incarnation:
        raise BackendError(
            f"incarnation {number} of this agent has taken over from {incarnation}",
            where=str(folder),
            remedy="this one must end; the job goes on with the other",
        )
    deadline = time.monotonic() + KILL_S
    while int(pid) != os.getpid() and _start_time(int(pid)) == int(started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BackendError(
                f"the earlier incarnation {number} of this agent (pid {pid}) does not die",
                where=str(folder),
                remedy="it hangs in the kernel (a driver, a file system); the node needs a look",
            )
        time.sleep(0.005)
    janitor.sweep(marker)


def _start_time(pid: int) -> int:
    """When the process started, in clock ticks since boot: with its pid its identity. -1 if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return -1 if fields[0] in "ZX" else int(fields[19])


def _start_janitor(*arguments: str) -> int:
    """Start a janitor; returns the descriptor whose end it waits for."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(janitor.__file__)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.wait()
    assert process.stdin is not None
    return os.dup(process.stdin.fileno())
