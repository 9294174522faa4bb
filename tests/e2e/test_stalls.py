"""A store or a disk that stands still, or is full, for longer than a lease: the job waits for it, and loses nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER, SLOW, STEPS, ended_well, launched, of_kind, pids, total
from tests.waiting import until

from rolemesh.errors import EXIT_FAILED
from rolemesh_durable.journal.sqlite import SQLITE_FILE
from rolemesh_runtime.digest import digest

Make = Callable[..., Job]
LEASE_S = 10.0
"""The default."""


def test_a_journal_that_is_locked_for_longer_than_a_lease_costs_nothing_and_the_status_says_so(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = job.running(10)
    with closing(sqlite3.connect(job.run_dir / SQLITE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        end = time.monotonic() + 1.5 * LEASE_S
        warned: tuple[str, ...] = ()
        while time.monotonic() < end:
            status = until(job.status, "the master answers although its journal is locked")
            warned = status.warnings or warned
            time.sleep(0.1)
        other.execute("ROLLBACK")
    assert "the journal cannot be written" in warned[0]
    after = job.running(status.committed + 5)
    assert (after.epoch, pids(after), after.warnings) == (before.epoch, pids(before), ())
    ended_well(job, process)
    assert launched(job) == []
    assert of_kind(job, "agent_lost", "rolled_back") == []


@pytest.mark.parametrize("killed", [False, True], ids=["", "a master that has only begun"])
def test_a_job_whose_journal_is_locked_ends_when_it_is_asked_to(make_job: Make, killed: bool) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = job.running(10)
    until(lambda: (status := job.status()) and status.persisted >= 0, "there is a snapshot on disk")
    with closing(sqlite3.connect(job.run_dir / SQLITE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        if killed:
            os.kill(before.master_pid, signal.SIGKILL)
            until(lambda: (status := job.status()) and status.state == "recovering", "the next master answers")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == EXIT_FAILED
    assert "as if it had been killed" in job.result()["message"]
    assert "--resume" in job.result()["message"]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids(before).values()), "no rank is left")
    again = job.start("--resume", str(job.run_dir), *SLOW)
    out, _ = again.communicate()
    assert again.returncode == 0, out
    state = digest({"total": total(STEPS), "calls": STEPS})
    assert job.result()["state_sha256"]["sink"] == sha256(state.encode()).hexdigest()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own for the runs of the job ``squares``."""
    folder = tmp_path / "squares" / "runs"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte."""
    path = folder / "fills-the-disk"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return path


@pytest.mark.soak
def test_a_disk_that_is_full_for_longer_than_a_lease_costs_nothing_though_a_master_dies_meanwhile(
    small_disk: Path, make_job: Make
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = job.running(10)
    filler = fill(small_disk)
    warned = until(lambda: (status := job.status()) and status.warnings, "somebody says so")
    assert "No space" in " ".join(warned) or "full" in " ".join(warned)
    os.kill(before.master_pid, signal.SIGKILL)
    until(lambda: (status := job.status()) and status.epoch > before.epoch, "the next master has taken over")
    since = time.monotonic()
    until(lambda: time.monotonic() > since + 1.2 * LEASE_S and job.status(), "more than a lease")
    filler.unlink()
    assert pids(job.running(20)) == pids(before)
    ended_well(job, process)
    assert launched(job) == []
    assert of_kind(job, "agent_lost", "rolled_back") == []
    state = digest({"total": total(STEPS), "calls": STEPS})
    assert job.result()["state_sha256"]["sink"] == sha256(state.encode()).hexdigest()


@pytest.fixture
def fail(tmp_path: Path) -> Iterator[Callable[[str], object]]:
    """`fail(FAULT)`: let the file system with the runs of the job ``squares`` fail, see `tests.e2e.broken_store`."""
    pytest.importorskip("mfusepy", reason="needs the package mfusepy, and Debian's fuse3")
    folder, shown, faults = tmp_path / "squares" / "runs", tmp_path / "shown", tmp_path / "faults"
    folder.mkdir(parents=True)
    shown.mkdir()
    faults.write_text("")
    command = [sys.executable, "-m", "tests.e2e.broken_store", str(shown), str(folder), str(faults)]
    process = subprocess.Popen(command)
    try:
        until(lambda: os.path.ismount(folder), "the file system is there")
        yield faults.write_text
    finally:
        faults.write_text("")
        subprocess.run(["umount", "-l", folder], check=True)
        process.wait()


@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True], ids=["", "the master dies meanwhile"])
@pytest.mark.parametrize("fault", ["EIO", "ESTALE", "EROFS", "ENOSPC", "SILENT"])
def test_a_folder_that_fails_for_longer_than_a_lease_ends_no_job(
    fail: Callable[[str], object], make_job: Make, fault: str, killed: bool
) -> None:
    job = make_job(extra=LADDER)
    process = job.start(*SLOW)
    before = job.running(10)
    fail(fault)
    if killed:
        os.kill(before.master_pid, signal.SIGKILL)
    time.sleep(1.5 * LEASE_S)
    fail("")
    again = job.running(20)
    ended_well(job, process)
    # Where nobody answers, the supervisor cannot tell the agents that a master is coming: they end, and start again.
    if not (killed and fault == "SILENT"):
        assert pids(again) == pids(before)
        assert launched(job) == []
        assert of_kind(job, "agent_lost", "rolled_back") == []
    state = digest({"total": total(STEPS), "calls": STEPS})
    assert job.result()["state_sha256"]["sink"] == sha256(state.encode()).hexdigest()
