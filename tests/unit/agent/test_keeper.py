"""Folders and processes that share their owner's fate, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rolemesh.agent.keeper import MARKER, Keeper

OWNER = """
import os, subprocess, sys, time
from rolemesh.agent.keeper import MARKER, Keeper
keeper = Keeper("test0000", "owner")
child = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark}, start_new_session=True)
print(keeper.shm, keeper.tmp, child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until_gone(folders: list[Path], pid: int) -> None:
    deadline = time.monotonic() + 10
    while any(folder.exists() for folder in folders) or not gone(pid):
        assert time.monotonic() < deadline, "the janitor has not cleaned up"
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_killed_owners_folders_and_marked_processes_are_removed(how: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    shm, tmp, pid = owner.stdout.readline().split()
    assert Path(shm).stat().st_mode & 0o777 == 0o700
    assert Path(tmp).stat().st_mode & 0o777 == 0o700
    owner.kill() if how == "SIGKILL" else owner.terminate()
    owner.wait()
    owner.stdout.close()
    until_gone([Path(shm), Path(tmp)], int(pid))


def test_closing_cleans_up_at_once_and_spares_processes_of_others() -> None:
    keeper = Keeper("test0001", "owner")
    mine = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark})
    other = subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: keeper.mark + "x"})
    try:
        (keeper.shm / "slot").write_bytes(b"x" * 10)
        keeper.close()
        assert not keeper.shm.exists()
        assert not keeper.tmp.exists()
        assert mine.wait(5) == -9
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()
