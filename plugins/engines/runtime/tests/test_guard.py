"""Folders and processes that share their owner's fate, however it ends; an agent's files wait for its next life."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.waiting import until

from rolemesh.errors import BackendError
from rolemesh_processes import janitor, ownership
from rolemesh_processes.boot import boot_id
from rolemesh_processes.guard import (
    MARKER,
    AgentGuard,
    ResourceGuard,
    remove_agent,
    remove_job,
    remove_orphans,
    shm_folder,
)
from rolemesh_processes.janitor import GUARD_FILE, OWNER_FILE
from rolemesh_processes.ownership import Owner

OWNER = """
import os, subprocess, sys, time
from rolemesh_processes.guard import MARKER, AgentGuard, ResourceGuard
job, incarnation, hold_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
guard = AgentGuard(job, "node0", incarnation, hold_s, *sys.argv[4:])
child = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: guard.mark}, start_new_session=True)
print(guard.shm, guard.tmp, child.pid, flush=True)
time.sleep(600)
"""

PARENT = """
import ctypes, os, signal, sys
if not os.fork():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[2], "0", "600"])
os.wait()
"""

DYING = """
import ctypes, os, signal, sys
from pathlib import Path
from rolemesh_processes.guard import AgentGuard, ResourceGuard

ACTS = {"fcntl.flock", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "subprocess.Popen"}
PLACES = "/tmp/rolemesh-", "/dev/shm/rolemesh-"
seen, last = 0, 0

def hook(event, args):
    global seen
    if last and (event in ACTS or event == "open" and str(args[0]).startswith(PLACES)):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

def live(job):
    guards = [AgentGuard(job, "node0", 1, 0.0), ResourceGuard(job, "master")]
    (guards[0].shm / "snapshot").write_bytes(b"state")
    (guards[0].tmp / "folder").mkdir()
    (guards[0].tmp / "folder" / "socket").touch()
    for guard in guards:
        guard.close()

def left(job):
    return [str(path) for place in ("/tmp", "/dev/shm") for path in Path(place).glob(f"rolemesh-{job}-*")]

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: the janitors become children, for whose end it can wait
signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"killed before act {act}: its janitors run for more than 10 s"))
sys.addaudithook(hook)
for act in range(1, 1000):
    job = f"{sys.argv[1]}x{act}"
    if not (pid := os.fork()):
        last = act
        live(job)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(10)
    try:
        while True:
            os.wait()
    except ChildProcessError:
        signal.alarm(0)
    if found := left(job):
        sys.exit(f"killed before act {act}, it left {found}")
    if ended == 0:
        print(act - 1)
        break
"""
"""An agent and a master, killed before each of their acts on files and processes, one after the other.

It looks for what they have left once their janitors have ended. A look at a folder while
somebody renames it may see neither name."""


class Process:
    """A process like an agent, with a resource guard and a marked child."""

    def __init__(self, job: str, incarnation: int = 0, hold_s: float = 0.0, over: Path | None = None) -> None:
        command = [sys.executable, "-c", OWNER, job, str(incarnation), str(hold_s), *([str(over)] if over else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        shm, tmp, child = self.process.stdout.readline().split()
        self.shm, self.tmp, self.child = Path(shm), Path(tmp), int(child)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def job() -> Iterator[str]:
    job_id = f"t{secrets.token_hex(3)}"
    yield job_id
    remove_agent(job_id, "node0")
    until(lambda: not janitors(job_id), "the janitors have gone")
    assert not list(Path("/tmp").glob(f"rolemesh-{job_id}-*"))


def janitors(job_id: str) -> list[psutil.Process]:
    """Return the janitors of a job's folders. While one renames a folder, a look at /tmp may see neither name."""
    begin = f"/tmp/rolemesh-{job_id}-"
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if any(part.startswith(begin) for part in each.info["cmdline"] or ())]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return True


def is_held(folder: Path) -> bool:
    """Return whether a process holds the guard of the folder."""
    with (folder / GUARD_FILE).open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_killed_owners_folders_and_marked_processes_are_removed(job: str, how: str) -> None:
    owner = Process(job)
    assert owner.shm == shm_folder(job, "node0")
    assert owner.shm.stat().st_mode & 0o777 == 0o700
    assert owner.tmp.stat().st_mode & 0o777 == 0o700
    owner.kill() if how == "SIGKILL" else owner.process.terminate()
    owner.kill()
    until(lambda: not owner.shm.exists() and not owner.tmp.exists() and gone(owner.child), "the janitor cleans up")


def test_the_next_incarnation_takes_the_files_over_and_the_dead_ones_janitor_leaves_them(job: str) -> None:
    owner = Process(job, incarnation=3, hold_s=1.0)
    (owner.shm / "snapshot").write_bytes(b"state")
    janitor_of_dead = next(p for p in psutil.process_iter(["cmdline"]) if str(owner.tmp) in (p.info["cmdline"] or ()))
    janitor_of_dead.suspend()  # until the files are taken over, however long that takes
    owner.kill()
    guard = AgentGuard(job, "node0", 4, 0.0)
    try:
        assert (guard.shm, guard.tmp) == (owner.shm, owner.tmp)
        janitor_of_dead.resume()
        until(lambda: gone(janitor_of_dead.pid), "the dead one's janitor ends")
        assert (guard.shm / "snapshot").read_bytes() == b"state"
        assert not gone(owner.child)
    finally:
        guard.close()
    assert not guard.shm.exists()
    assert not guard.tmp.exists()
    assert gone(owner.child)


def test_files_that_nobody_takes_over_are_removed_when_their_time_is_over(job: str) -> None:
    owner = Process(job, hold_s=0.5)
    before = time.monotonic()
    owner.kill()
    until(lambda: not owner.shm.exists() and not owner.tmp.exists(), "the janitor gives up waiting")
    assert time.monotonic() - before >= 0.5
    assert gone(owner.child)


def test_files_of_an_ended_job_wait_for_nobody(job: str, tmp_path: Path) -> None:
    owner = Process(job, hold_s=600.0, over=tmp_path / "result.json")
    owner.kill()
    until(lambda: is_held(owner.shm), "its janitor waits")
    assert not gone(owner.child)
    (tmp_path / "result.json").touch()
    until(lambda: not owner.shm.exists() and not owner.tmp.exists(), "the janitor does not wait")
    assert gone(owner.child)


def test_an_incarnation_kills_earlier_ones_before_it_runs_and_what_they_had_started_with_itself(job: str) -> None:
    stopped = Process(job, incarnation=1, hold_s=60.0)
    os.kill(stopped.process.pid, 19)
    guard = AgentGuard(job, "node0", 2, 0.0)
    try:
        assert stopped.process.wait() == -9
        assert guard.shm.exists()
        assert not gone(stopped.child)
    finally:
        guard.close()
    assert gone(stopped.child)


def test_no_agent_waits_for_its_next_incarnation_after_the_starter_is_gone(job: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, OWNER, job], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    shm, tmp, child = parent.stdout.readline().split()
    with parent.stdout:
        parent.kill()
        parent.wait()
    until(lambda: gone(int(child)) and not Path(shm).exists() and not Path(tmp).exists(), "all is gone at once")


def test_an_incarnation_that_has_been_replaced_is_refused(job: str) -> None:
    newer = AgentGuard(job, "node0", 5, 0.0)
    try:
        with pytest.raises(BackendError, match="incarnation 5 of this agent has taken over from 4"):
            AgentGuard(job, "node0", 4, 0.0)
        assert newer.shm.exists()
    finally:
        newer.close()


def test_the_owner_that_was_replaced_does_not_remove_what_it_no_longer_owns(job: str) -> None:
    old = AgentGuard(job, "node0", 1, 0.0)
    new = AgentGuard(job, "node0", 2, 0.0)
    old.close()
    assert new.shm.exists()
    new.close()
    assert not new.shm.exists()


def test_closing_cleans_up_at_once_and_spares_processes_of_others(job: str) -> None:
    guard = AgentGuard(job, "node0", 1)
    mine = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: guard.mark})
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: f"{job}/node01/1"})
    try:
        (guard.shm / "slot").write_bytes(b"x" * 10)
        guard.close()
        guard.close()
        assert not guard.shm.exists()
        assert not guard.tmp.exists()
        assert mine.wait() == -9
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize("wrong", ["open", "link", "file"])
def test_a_folder_that_somebody_else_could_have_made_is_refused(job: str, tmp_path: Path, wrong: str) -> None:
    path = shm_folder(job, "node0")
    try:
        match wrong:
            case "open":
                path.mkdir()
                path.chmod(0o755)
            case "link":
                path.symlink_to(tmp_path)
            case "file":
                path.touch()
        with pytest.raises(BackendError, match="not a private one") as refused:
            AgentGuard(job, "node0", 0)
        assert str(path) in str(refused.value)
    finally:
        path.rmdir() if wrong == "open" else path.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_is_refused_and_left_alone(job: str) -> None:
    path = shm_folder(job, "node0")
    path.mkdir(mode=0o700)
    try:
        os.chown(path, 12345, 12345)
        with pytest.raises(BackendError, match="user 12345"):
            AgentGuard(job, "node0", 0)
        age(path)
        remove_orphans()
        assert path.exists()
    finally:
        shutil.rmtree(path)


LONG_AGO = -10 * ownership.ORPHAN_S
"""In seconds since boot, for a machine that has just been started, too."""


def age(folder: Path, owner: Owner | None = None) -> None:
    """Make everything in `folder` look untouched for longer than orphans are given; with an `owner`, give it that."""
    past = time.time() - 10 * ownership.ORPHAN_S
    (folder / GUARD_FILE).write_bytes(b"%020.3f" % LONG_AGO)
    if owner is not None:
        (folder / OWNER_FILE).write_bytes(owner.encode())
    for entry in (*folder.iterdir(), folder):
        os.utime(entry, (past, past))


def dead(job_id: str, part: str = "node0") -> Owner:
    """An owner that lives no more, and that nobody looked after for long."""
    return Owner(job_id, part, "token", 1, 999999999, 1, boot_id(), LONG_AGO)


def folder_of(owner: Owner) -> Path:
    folder = shm_folder(owner.job, owner.part)
    folder.mkdir(mode=0o700)
    age(folder, owner)
    return folder


def test_the_next_agent_removes_files_of_jobs_that_no_longer_live_and_no_others(job: str) -> None:
    orphan, fresh = folder_of(dead(f"{job}a")), folder_of(dead(f"{job}c"))
    (fresh / GUARD_FILE).write_bytes(b"%020.3f" % time.clock_gettime(time.CLOCK_BOOTTIME))
    owner = Process(f"{job}b", hold_s=600.0)
    try:
        age(owner.shm)
        AgentGuard(job, "node0", 0).close()
        assert not orphan.exists()
        assert fresh.exists(), "its owner may have died a moment ago"
        assert owner.shm.exists()
        owner.kill()
        until(lambda: is_held(owner.shm), "its janitor holds the guard")
        age(owner.shm)
        remove_orphans()
        assert owner.shm.exists(), "its janitor waits for the next incarnation"
    finally:
        with contextlib.suppress(OSError):
            owner.kill()
        for kind in "abc":
            remove_agent(f"{job}{kind}", "node0")
        until(lambda: not owner.tmp.exists(), "the janitor is done")


def test_a_step_of_the_clock_makes_no_orphans_and_a_boot_does(job: str) -> None:
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    recent = folder_of(msgspec.structs.replace(dead(job), since=now))
    (recent / GUARD_FILE).write_bytes(b"%020.3f" % now)
    os.utime(recent / GUARD_FILE, (0, 0))  # as if the clock had been 1970 a moment ago
    before = folder_of(msgspec.structs.replace(dead(f"{job}x"), boot="another", since=now))
    (before / GUARD_FILE).write_bytes(b"%020.3f" % (now + 1e6))
    remove_orphans()
    assert recent.exists()
    assert not before.exists()


def test_a_living_owners_folder_is_no_orphan_without_its_guard(job: str) -> None:
    guard = AgentGuard(job, "node0", 0)
    try:
        age(guard.shm)
        (guard.shm / GUARD_FILE).unlink()
        remove_orphans()
        assert guard.shm.exists()
    finally:
        guard.close()


def test_a_folder_whose_guard_was_removed_is_given_one_and_ages_from_then_on(job: str) -> None:
    folder = folder_of(dead(job))
    (folder / GUARD_FILE).unlink()
    remove_orphans()
    assert folder.exists()
    age(folder)
    remove_orphans()
    assert not folder.exists()


def test_nothing_is_put_into_a_folder_that_is_being_removed(job: str) -> None:
    """It would stay: without its owner file it is nobody's."""
    folder = folder_of(dead(job))
    (folder / GUARD_FILE).unlink()
    with janitor.locked(str(folder)):
        remove_orphans()
        assert not (folder / GUARD_FILE).exists()
    for number in range(100):
        folder = folder_of(dead(f"{job}{number}"))
        (folder / GUARD_FILE).unlink()
        looking = threading.Thread(target=remove_orphans)
        looking.start()
        janitor.remove(str(folder), None)
        looking.join()
        assert not list(folder.parent.glob(f"{folder.name}*"))


def test_only_folders_with_our_owner_file_are_removed(job: str, tmp_path: Path) -> None:
    """Neither the name nor the age of a folder nor its other files count."""
    theirs = [Path("/tmp") / f"rolemesh-{job}-{i}" for i in range(6)] + [Path("/tmp") / f"rm-{job}"]
    try:
        for folder in theirs:
            folder.mkdir()
            (folder / "work").write_text("ten days of it")
            (folder / GUARD_FILE).touch()
        (theirs[0] / OWNER_FILE).write_text("token 1 999999999 1 10.0")
        (theirs[1] / OWNER_FILE).write_text('{"owner": "somebody else", "pid": 1}')
        (theirs[2] / OWNER_FILE).write_bytes(bytes(1 << 20))
        (theirs[3] / OWNER_FILE).symlink_to(tmp_path / "owner")
        (tmp_path / "owner").write_bytes(dead(job).encode())
        os.mkfifo(theirs[4] / OWNER_FILE)
        past = time.time() - 10 * ownership.ORPHAN_S
        for folder in theirs:
            os.utime(folder, (past, past))
        remove_orphans()
        AgentGuard(job, "node0", 0).close()
        assert all((folder / "work").exists() for folder in theirs)
    finally:
        for folder in theirs:
            shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user")
@pytest.mark.parametrize("what", ["guard", "owner", "folder"])
def test_a_pipe_of_another_user_stops_no_agent(job: str, what: str) -> None:
    folder = Path("/tmp") / f"rolemesh-{job}-pipe"
    if what == "folder":
        os.mkfifo(folder)
        os.chown(folder, 12345, 12345)
    else:
        folder.mkdir(mode=0o777)
        os.mkfifo(folder / (GUARD_FILE if what == "guard" else OWNER_FILE))
        if what == "guard":
            (folder / OWNER_FILE).write_bytes(dead(job).encode())
    try:
        command = [
            sys.executable,
            "-c",
            f"from rolemesh_processes.guard import *; AgentGuard({job!r}, 'node0').close()",
        ]
        assert subprocess.run(command, check=False).returncode == 0
    finally:
        folder.unlink() if what == "folder" else shutil.rmtree(folder, ignore_errors=True)


def test_the_end_of_one_job_leaves_another_whose_name_begins_with_its_own(job: str) -> None:
    mine, other = folder_of(dead(job, "b")), folder_of(dead(f"{job}-c", "b"))
    try:
        remove_job(job)
        assert (mine.exists(), other.exists()) == (False, True)
        (other / GUARD_FILE).write_bytes(b"%020.3f" % time.clock_gettime(time.CLOCK_BOOTTIME))
        with pytest.raises(BackendError, match="not a private one of this user: job"):
            AgentGuard(job, "c-b", 1)
        assert other.exists()
    finally:
        remove_job(f"{job}-c")


def test_the_janitor_keeps_the_files_of_a_living_owner_young(job: str) -> None:
    past = time.time() - 1e6
    guard = AgentGuard(job, "node0")
    try:
        socket = guard.tmp / "socket"
        socket.touch()
        os.utime(socket, (past, past))
        os.utime(guard.shm / OWNER_FILE, (past, past))
        for folder in (guard.tmp, guard.shm):
            janitor.keep_young(str(folder))
            assert min(entry.stat().st_mtime for entry in folder.iterdir()) > past + 1e5
    finally:
        guard.close()


def test_files_of_a_lost_node_are_removed_with_its_processes_at_once(job: str) -> None:
    owner = Process(job, hold_s=600.0)
    owner.kill()
    remove_agent(job, "node0")
    assert not owner.shm.exists()
    until(lambda: gone(owner.child), "the child has been killed")


def test_a_plain_keepers_folder_goes_with_its_owner(job: str) -> None:
    guard = ResourceGuard(job, "master")
    assert guard.tmp.stat().st_mode & 0o777 == 0o700
    guard.close()
    assert not guard.tmp.exists()


def test_wherever_an_owner_is_killed_nothing_of_it_stays(job: str) -> None:
    """Also where it makes its folders, and where it removes them."""
    done = subprocess.run([sys.executable, "-c", DYING, job], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
