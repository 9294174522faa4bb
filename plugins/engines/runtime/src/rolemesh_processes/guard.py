"""Private folders and processes that share the fate of their owner. An agent's files outlive it for a short time.

An agent's folder in shared memory is named after job and agent. The agent's next incarnation takes it over with its
content; if none comes, the janitor of the dead one removes it. Only folders with an owner file of ours are taken over
or removed (`rolemesh_processes.ownership`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rolemesh.errors import BackendError
from rolemesh_processes import janitor
from rolemesh_processes.facts import start_time
from rolemesh_processes.ownership import Owner, is_orphan, owner_of
from rolemesh_processes.reserve import Reserve

__all__ = ["MARKER", "AgentGuard", "ResourceGuard", "remove_agent", "remove_job", "remove_orphans", "shm_folder"]

MARKER = "ROLEMESH_JOB"
"""Environment variable that marks every process of one job on one agent: ``job/agent/incarnation``."""
KILL_S = 10.0


def shm_folder(job_id: str, agent: str) -> Path:
    """Return the folder for an agent's files: on tmpfs, if there is one."""
    return _fast() / f"{janitor.PREFIX}{job_id}-{agent}"


class ResourceGuard:
    """A private folder `tmp` (mode 0700, for sockets and temporary files) and marked processes, which end with their
    owner.

    `mark` goes into the environment of child processes. The owner calls `close` when it ends well; when it dies, its
    janitor does the same.
    """

    def __init__(self, job_id: str, owner: str, number: int | None = None) -> None:
        self.mark = f"{job_id}/{owner}/{os.getpid() if number is None else number}"
        self.tmp = _new_tmp(job_id)
        self._begin(Owner.here(job_id, owner, secrets.token_hex(8), number or 0))

    def _begin(self, here: Owner, hold: tuple[str, ...] = ()) -> None:
        """Let a janitor make `tmp`, and watch this process. `hold`: the janitor's arguments about a folder that waits
        for the next owner."""
        self._tmp_token = here.token
        self._open = [_start_janitor(f"{MARKER}={self.mark}", str(self.tmp), here.encode().decode(), *hold)]
        self._open.append(janitor.guard(str(self.tmp)))

    def close(self) -> None:
        """Kill every process with the mark and remove the folders. Idempotent."""
        janitor.sweep(f"{MARKER}={self.mark}")
        self._close_tmp()

    def _close_tmp(self) -> None:
        janitor.remove(str(self.tmp), self._tmp_token)
        self._release()

    def _release(self) -> None:
        while self._open:
            os.close(self._open.pop())


class AgentGuard(ResourceGuard):
    """A guard that also has the agent's folder in shared memory, `shm`, taken over from an earlier incarnation if there
    is one.

    Before the take-over, the process of an earlier incarnation is killed. The processes that it started keep running,
    and `tmp` stays the same: the owner adopts them, or calls `sweep`. Raises `BackendError` if the folder belongs to
    another user, or to a later incarnation (then this one was replaced and must end).

    `hold_s`: maximum seconds that the folder waits for the next incarnation after this one's death. It waits no longer
    if the process that has started this one is gone, or if the file `over` exists, because the job has ended.
    """

    def __init__(
        self, job_id: str, agent: str, incarnation: int = 0, hold_s: float = 10.0, over: str = "/nowhere"
    ) -> None:
        remove_orphans()
        self.shm = shm_folder(job_id, agent)
        self.mark = f"{job_id}/{agent}/{incarnation}"
        self._job, self._agent, self._incarnation, self._wait = job_id, agent, incarnation, (str(hold_s), over)
        self._token = secrets.token_hex(8)
        self.tmp = _new_tmp(job_id)
        new = not self.shm.exists()
        if new:  # no earlier janitor would remove what is made from here on
            self._watched()
        with _locked(self.shm):
            before = _replace_owner(self.shm, job_id, agent, incarnation)
            if not new:
                self.tmp = _taken_over(before) or self.tmp
                self._watched()
            self._own()
            self._open.append(janitor.guard(str(self.shm)))
            if before is None or str(self.tmp) != before.tmp:
                self.sweep()  # nobody can be reached any more

    def _watched(self) -> None:
        parent = os.getppid()
        everything = f"{MARKER}={self._job}/{self._agent}/"
        hold_s, over = self._wait
        held = str(self.shm), self._token, hold_s, everything, str(parent), str(start_time(parent)), over
        here = Owner.here(self._job, self._agent, secrets.token_hex(8), self._incarnation)
        self._begin(here, held)

    def sweep(self) -> None:
        """Kill all processes that this and earlier incarnations started."""
        janitor.sweep(f"{MARKER}={self._job}/{self._agent}/")

    @property
    def lost(self) -> bool:
        """Return whether somebody has removed `shm` or put another folder there."""
        try:
            return self.shm.stat().st_ino != self._inode
        except OSError:
            return True

    def renew(self) -> None:
        """Recreate `shm`. Raises `OSError` if there is no room, and `BackendError` if another owner's folder is
        there."""
        with _locked(self.shm):
            self._own()
            self._open.append(janitor.guard(str(self.shm)))

    def _own(self) -> None:
        self._inode = self.shm.stat().st_ino
        here = Owner.here(self._job, self._agent, self._token, self._incarnation, str(self.tmp))
        Reserve(self.shm).make(self.shm / janitor.OWNER_FILE, here.encode())

    def close(self) -> None:
        """As `ResourceGuard.close`, and remove `shm`, unless a later incarnation has taken it over."""
        if janitor.token_of(str(self.shm)) in ("", self._token):
            self.sweep()
            janitor.remove(str(self.shm), self._token)
        self._close_tmp()


def _new_tmp(job_id: str) -> Path:
    """Return the path of a folder for sockets that the janitor makes."""
    return Path("/tmp", f"{janitor.PREFIX}{job_id}-{secrets.token_hex(4)}")


def _taken_over(before: Owner | None) -> Path | None:
    """Return the socket folder of the owner `before`, if it exists and still belongs to it."""
    if before is None or not before.tmp:
        return None
    known = owner_of(Path(before.tmp))
    return Path(before.tmp) if known is not None and (known.job, known.part) == (before.job, before.part) else None


def remove_agent(job_id: str, agent: str) -> None:
    """Kill the processes marked as this agent's and remove its folder: the job is over, or the node is lost."""
    janitor.sweep(f"{MARKER}={job_id}/{agent}/")
    folder = shm_folder(job_id, agent)
    owner = owner_of(folder)
    if owner is not None and (owner.job, owner.part) == (job_id, agent):
        janitor.remove(str(folder), owner.token)


def remove_job(job_id: str) -> None:
    """Kill the processes marked as this job's and remove its agents' folders on this machine: the job is over."""
    janitor.sweep(f"{MARKER}={job_id}/")
    for folder in _fast().glob(f"{janitor.PREFIX}*"):
        owner = owner_of(folder)
        if folder.name.startswith(f"{janitor.PREFIX}{job_id}-") and folder.name.endswith(janitor.REMOVED):
            _end_removal(folder, owner)
        elif owner is not None and owner.job == job_id and folder == shm_folder(job_id, owner.part):
            janitor.remove(str(folder), owner.token)


def remove_orphans() -> None:
    """Remove folders of dead jobs: those with an owner file of ours, if the owner is dead and neither its janitor nor
    its next incarnation maintains them."""
    for place in {_fast(), Path("/tmp")}:
        for folder in place.glob(f"{janitor.PREFIX}*"):
            with contextlib.suppress(OSError):
                owner = owner_of(folder)
                if folder.name.endswith(janitor.REMOVED):
                    _end_removal(folder, owner)
                elif owner is not None and is_orphan(folder, owner):
                    janitor.remove(str(folder), owner.token)


def _end_removal(doomed: Path, owner: Owner | None) -> None:
    """Remove what the death of its remover has left of a folder: its owner file is the last to go."""
    with contextlib.suppress(OSError):
        if owner is not None:
            janitor.end_removal(str(doomed), fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif doomed.lstat().st_uid == os.geteuid():
            doomed.rmdir()  # unless there is something in it


def _fast() -> Path:
    return Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create `folder` if it is missing, and prevent others from taking it over or removing it."""
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


def _replace_owner(folder: Path, job_id: str, agent: str, incarnation: int) -> Owner | None:
    """Make sure that no earlier incarnation acts in `folder` any more. Return it."""
    before = owner_of(folder)
    if before is None:
        return None  # new, or its owner file was lost: its name has the job's id, which nobody else knows
    if (before.job, before.part) != (job_id, agent):
        raise _foreign(folder, f"job {before.job}, agent {before.part}")
    if before.incarnation > incarnation:
        raise BackendError(
            f"incarnation {before.incarnation} of this agent has taken over from {incarnation}",
            where=str(folder),
            remedy="this one must end; the job goes on with the other",
        )
    deadline = time.monotonic() + KILL_S
    while before.pid != os.getpid() and before.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(before.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise BackendError(
                f"the earlier incarnation {before.incarnation} of this agent (pid {before.pid}) does not die",
                where=str(folder),
                remedy="it hangs in the kernel (a driver, a file system); the node needs a look",
            )
        time.sleep(0.005)
    return before


def _start_janitor(*arguments: str) -> int:
    """Start a janitor, which makes the folder. Return the descriptor whose closing it waits for."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(janitor.__file__)), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdin is not None
    with process.stdin:
        if code := process.wait():
            raise OSError(code, f"the janitor of the folder did not start: {os.strerror(abs(code))}", arguments[1])
        return os.dup(process.stdin.fileno())
