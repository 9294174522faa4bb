"""Folders and processes that share their owner's fate, however it ends; an agent's files wait for its next life."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolemesh.agent import keeper as keepers
from rolemesh.agent.janitor import GUARD_FILE, OWNER_FILE
from rolemesh.agent.keeper import MARKER, AgentKeeper, Keeper, remove_agent, remove_orphans, shm_folder
from rolemesh.errors import BackendError

OWNER = """
import os, subprocess, sys, time
from rolemesh.agent.keeper import MARKER, AgentKeeper, Keeper
job, incarnation, hold_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
keeper = AgentKeeper(job, "node0", incarnation, hold_s)
child = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark}, start_new_session=True)
print(keeper.shm, keeper.tmp, child.pid, flush=True)
time.sleep(600)
"""


class Owner:
    """An agent-like process with a keeper and a marked child."""

    def __init__(self, job: str, incarnation: int = 0, hold_s: float = 0.0) -> None:
        command = [sys.executable, "-c", OWNER, job, str(incarnation), str(hold_s)]
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
    until(lambda: not list(Path("/tmp").glob(f"rm-{job_id}-*")), "the janitors have gone")


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends while it is read
        return True


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 10 s"
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_killed_owners_folders_and_marked_processes_are_removed(job: str, how: str) -> None:
    owner = Owner(job)
    assert owner.shm == shm_folder(job, "node0")
    assert owner.shm.stat().st_mode & 0o777 == 0o700
    assert owner.tmp.stat().st_mode & 0o777 == 0o700
    owner.kill() if how == "SIGKILL" else owner.process.terminate()
    owner.kill()
    until(lambda: not owner.shm.exists() and not owner.tmp.exists() and gone(owner.child), "the janitor cleans up")


def test_the_next_incarnation_takes_the_files_over_and_the_dead_ones_janitor_leaves_them(job: str) -> None:
    owner = Owner(job, incarnation=3, hold_s=1.0)
    (owner.shm / "snapshot").write_bytes(b"state")
    owner.kill()
    until(lambda: not owner.tmp.exists() and gone(owner.child), "ranks and sockets are gone at once")
    assert (owner.shm / "snapshot").read_bytes() == b"state"
    keeper = AgentKeeper(job, "node0", 4, 0.0)
    try:
        assert keeper.shm == owner.shm
        time.sleep(1.3)  # longer than the dead one's janitor waits: that it leaves the files alone is the point
        assert (keeper.shm / "snapshot").read_bytes() == b"state"
    finally:
        keeper.close()
    assert not keeper.shm.exists()


def test_files_that_nobody_takes_over_are_removed_when_their_time_is_over(job: str) -> None:
    owner = Owner(job, hold_s=0.5)
    before = time.monotonic()
    owner.kill()
    until(lambda: not owner.shm.exists(), "the janitor gives up waiting")
    assert time.monotonic() - before >= 0.5


def test_an_incarnation_kills_what_is_left_of_earlier_ones_before_it_runs(job: str) -> None:
    stopped = Owner(job, incarnation=1, hold_s=60.0)
    os.kill(stopped.process.pid, 19)
    keeper = AgentKeeper(job, "node0", 2, 0.0)
    try:
        assert stopped.process.wait(1) == -9
        assert gone(stopped.child)
        until(lambda: not stopped.tmp.exists(), "its janitor has done its part")
        assert keeper.shm.exists()
    finally:
        keeper.close()


def test_an_incarnation_that_has_been_replaced_is_refused(job: str) -> None:
    newer = AgentKeeper(job, "node0", 5, 0.0)
    try:
        with pytest.raises(BackendError, match="incarnation 5 of this agent has taken over from 4"):
            AgentKeeper(job, "node0", 4, 0.0)
        assert newer.shm.exists()
    finally:
        newer.close()


def test_the_owner_that_was_replaced_does_not_remove_what_it_no_longer_owns(job: str) -> None:
    old = AgentKeeper(job, "node0", 1, 0.0)
    new = AgentKeeper(job, "node0", 2, 0.0)
    old.close()
    assert new.shm.exists()
    new.close()
    assert not new.shm.exists()


def test_closing_cleans_up_at_once_and_spares_processes_of_others(job: str) -> None:
    keeper = AgentKeeper(job, "node0", 1)
    mine = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark})
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark + "2"})
    try:
        (keeper.shm / "slot").write_bytes(b"x" * 10)
        keeper.close()
        keeper.close()
        assert not keeper.shm.exists()
        assert not keeper.tmp.exists()
        assert mine.wait(5) == -9
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
            AgentKeeper(job, "node0", 0)
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
            AgentKeeper(job, "node0", 0)
        age(path)
        remove_orphans()
        assert path.exists()
    finally:
        path.rmdir()


def age(folder: Path) -> None:
    """Make everything in `folder` look untouched for longer than orphans are given."""
    past = time.time() - 10 * keepers.ORPHAN_S
    for entry in (*folder.iterdir(), folder):
        os.utime(entry, (past, past))


def test_the_next_agent_removes_files_of_jobs_that_no_longer_live_and_no_others(job: str) -> None:
    orphan, living, fresh = (shm_folder(f"{job}{kind}", "node0") for kind in "abc")
    for folder in (orphan, fresh):
        folder.mkdir(mode=0o700)
        (folder / GUARD_FILE).touch()
        (folder / OWNER_FILE).write_text("token 1 999999999 1 10.0")
    owner = Owner(f"{job}b", hold_s=600.0)
    try:
        age(orphan)
        age(living)
        AgentKeeper(job, "node0", 0).close()
        assert not orphan.exists()
        assert fresh.exists(), "its owner may have died a moment ago"
        assert living.exists()
        owner.kill()
        until(lambda: gone(owner.child), "the janitor of the dead owner is at work")
        age(living)
        remove_orphans()
        assert living.exists(), "its janitor waits for the next incarnation"
    finally:
        with contextlib.suppress(OSError):
            owner.kill()
        for kind in "abc":
            remove_agent(f"{job}{kind}", "node0")
        until(lambda: not owner.tmp.exists(), "the janitor is done")


def test_files_of_a_lost_node_are_removed_with_its_processes_at_once(job: str) -> None:
    owner = Owner(job, hold_s=600.0)
    owner.kill()
    remove_agent(job, "node0")
    assert not owner.shm.exists()
    until(lambda: gone(owner.child), "the child has been killed")


def test_a_plain_keepers_folder_goes_with_its_owner(job: str) -> None:
    keeper = Keeper(job, "master")
    assert keeper.tmp.stat().st_mode & 0o777 == 0o700
    keeper.close()
    assert not keeper.tmp.exists()
