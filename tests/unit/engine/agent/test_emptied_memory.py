"""Shared memory that is emptied under a living job, as systemd does at the logout of a user without lingering."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.unit.engine.agent.conftest import COUNTS, Node
from tests.waiting import until

from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import decode, encode, flatten
from rolemesh_dataplane.shm import SlotPool


def test_a_job_whose_memory_is_emptied_says_so_claims_nothing_and_goes_on_with_new_files(
    node: Callable[..., Node],
) -> None:
    here = node(COUNTS, {"work": "step"}, stateful=("work",), steps=20)
    here.launch("work")
    here.run("work", granted=4)
    here.until(lambda report: any(rank.durable == 4 for rank in report.ranks), "five steps are in memory")
    shutil.rmtree(here.shm)
    said = here.until(lambda report: report.warning, "the agent says so")
    assert "snapshots of work/0 are gone from memory" in said
    assert "loginctl enable-linger" in said
    assert here.last is not None
    assert [rank.durable for rank in here.last.ranks] == [-1]
    until(lambda: (here.shm / ".owner").exists(), "the folder is there again")
    here.advance(9)
    pid = here.until(
        lambda report: next((r.pid for r in report.ranks if r.durable == 9 and not report.warning), 0),
        "it is safe again",
    )
    os.kill(pid, signal.SIGKILL)
    failed = here.rank("work", "failed")
    assert failed.snapshots[-1] == 9
    here.launch("work", generation=1, resume=9, restore="memory")
    here.run("work", granted=12, generation=1)
    here.until(lambda report: any(rank.durable == 12 for rank in report.ranks), "its successor goes on from there")


def test_snapshots_whose_files_vanish_are_written_to_new_ones(tmp_path: Path) -> None:
    folder = tmp_path / "shm"
    rank, agent = MemorySnapshots(folder, "work", 0), MemorySnapshots(folder, "work", 0)
    state = {"x": np.arange(1000)}
    for step in range(3):
        rank.write(step, state, log=step, persist=False)
    assert agent.intact(2)
    newest = folder / f"snap-work-0-{next(iter(rank._slots))}"
    for path in folder.glob("snap-work-0-*"):
        path.unlink()
    assert not agent.intact(2), f"the index is there, and {newest.name} is not"
    rank.write(3, state, log=3, persist=False)
    assert agent.intact(3)
    shutil.rmtree(folder)
    assert not agent.intact(3)
    assert agent.steps() == ()
    rank.write(4, state, log=4, persist=True)
    assert agent.steps() == (4,)
    assert agent.pinned() == (4,)
    read = agent.read(4).state
    assert read is not None
    assert np.array_equal(read["x"], state["x"])


def test_slots_whose_files_vanish_are_copied_from_what_is_mapped(tmp_path: Path) -> None:
    pool = SlotPool(tmp_path / "shm", "slot")
    used, free = pool.acquire(100_000), pool.acquire(100_000)
    used.write([b"x" * 100_000])
    pool.release(free)
    before = pool.used_bytes
    shutil.rmtree(pool.directory)
    pool.directory.mkdir()
    pool.forget_lost()
    assert (pool.free, pool.free_bytes) == (0, 0)
    copy = pool.rescue(used)
    assert (copy.name != used.name, (pool.directory / copy.name).exists()) == (True, True)
    assert bytes(copy.views([100_000])[0]) == b"x" * 100_000
    assert pool.used_bytes == before
    assert pool.rescue(copy) is copy


def test_a_log_whose_files_vanish_begins_again_behind_where_it_was(tmp_path: Path) -> None:
    header, buffers = encode({"x": 1})
    body = flatten(header, [], buffers)

    def write(log: SendLog, step: int) -> int:
        return log.chunk(0, step, 0, True, 1, (0,), body, len(header), 0)

    log = SendLog(tmp_path / "shm", "work", 0)
    write(log, 0)
    assert not log.lost
    shutil.rmtree(tmp_path / "shm")
    assert log.lost
    log.begin_again()
    assert write(log, 0) == 1
    (again,) = SendLog.read(tmp_path / "shm", "work", 0)
    assert decode(*again.load(tmp_path / "shm")) == {"x": 1}
