"""From memory to disk in the background: whole or not at all, and a full disk stops nobody."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from tests.waiting import HANG_S

from rolemesh.api.batch import Shard
from rolemesh_checkpoint import disk
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.log_record import chunk_head
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_durable.agent.persister import TOGETHER, Persister
from rolemesh_runtime.digest import digest

SIZE = 300_000


def state(step, rank=0):
    return {"x": Shard(np.full(SIZE, step, np.float32), (2 * SIZE,), (rank * SIZE,)), "step": step}


@pytest.fixture
def persister(shm, run_dir):
    made = Persister(shm, run_dir, {"trainer": 2, "reward": 1})
    made.start()
    yield made
    made.close()


def test_a_pinned_snapshot_gets_to_disk_and_stays_pinned_until_its_set_is_complete(shm, run_dir, persister, until):
    memory = MemorySnapshots(shm, "trainer", 1)
    memory.write(9, state(9, 1), log=0, persist=True)
    persister.look("trainer", 1)
    (done,) = until(persister.results)
    assert (done.role, done.rank, done.step) == ("trainer", 1, 9)
    (name,) = done.files
    assert name == "trainer/rank-1-of-2.safetensors"
    path = disk.step_folder(run_dir, 9) / disk.attempt_file(name, done.attempt)
    assert path.read_bytes() == (shm / "snap-trainer-1-0").read_bytes()
    assert memory.pinned() == (9,)
    persister.forget(9)
    assert memory.pinned() == ()
    assert persister.results() == []
    assert persister.warning == ""


def test_sets_of_all_ranks_are_loaded_again(shm, run_dir, persister, manifest, until):
    for rank in range(2):
        MemorySnapshots(shm, "trainer", rank).write(9, state(9, rank), log=0, persist=True)
    MemorySnapshots(shm, "reward", 0).write(9, None, log=0, persist=True)
    for role, rank in (("trainer", 0), ("trainer", 1), ("reward", 0)):
        persister.look(role, rank)
    results = until(lambda: (found := persister.results()) and len(found) == 3 and found)
    folder = manifest(9, {"trainer": 2, "reward": 1}, results)
    assert disk.verify(folder) == []
    assert digest(disk.load(folder, "trainer", 1, 2, dict).state) == digest(state(9, 1))
    assert disk.load(folder, "reward", 0, 1, dict).state is None


def test_a_checkpoint_of_ranks_that_keep_nothing_is_complete_too(shm, run_dir, persister, manifest, until):
    MemorySnapshots(shm, "reward", 0).write(9, None, log=0, persist=True)
    persister.look("reward", 0)
    folder = manifest(9, {"reward": 1}, until(persister.results))
    assert disk.verify(folder) == []
    assert disk.newest_complete(run_dir) == 9


def test_a_full_disk_is_told_nothing_is_left_over_and_the_next_set_is_tried(shm, run_dir, persister, until):
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=0, persist=True)
    persister.fail_next()
    persister.look("trainer", 0)
    warning = until(lambda: persister.warning)
    assert "step 9" in warning
    assert "trainer/0: No space left on device; the job goes on without it" in warning
    assert persister.results() == []
    until(lambda: not any(files for _, _, files in os.walk(run_dir)))
    assert memory.pinned() == ()
    memory.write(19, state(19), log=0, persist=True)
    persister.look("trainer", 0)
    assert [done.step for done in until(persister.results)] == [19]
    assert "step 9" in persister.warning, "others may lack room for their part of the checkpoint"
    persister.forget(19)
    assert persister.warning == ""


def test_a_disk_that_is_really_full(shm, small_disk, until):
    persister = Persister(shm, small_disk, {"trainer": 1, "small": 1})
    persister.start()
    try:
        MemorySnapshots(shm, "trainer", 0).write(9, {"x": np.zeros(1 << 20)}, log=0, persist=True)
        persister.look("trainer", 0)
        assert "No space left on device" in until(lambda: persister.warning)
        assert not [path for path in small_disk.rglob("*") if path.is_file()]
        MemorySnapshots(shm, "small", 0).write(19, {"x": np.zeros(1 << 10)}, log=0, persist=True)
        persister.look("small", 0)
        assert until(persister.results)[0].step == 19
    finally:
        persister.close()


def test_snapshots_of_a_dead_rank_are_persisted_first(shm, run_dir, persister, until):
    for rank in range(2):
        MemorySnapshots(shm, "trainer", rank).write(9, state(9, rank), log=0, persist=True)
    with persister._changed:  # the thread does not begin before everything is wanted
        persister.want("trainer", 0, 9)
        persister.died("trainer", 1)
    done = until(lambda: len(persister.results()) == 2 and persister.results())
    assert [each.rank for each in done] == [1, 0]


def test_the_step_for_which_all_ranks_wait_overtakes_older_ones(shm, run_dir, until):
    """And the thread says when it is on disk."""
    said = threading.Semaphore(0)
    persister = Persister(shm, run_dir, {"trainer": 2}, written=said.release)
    for rank in range(2):
        memory = MemorySnapshots(shm, "trainer", rank)
        for step in (9, 19):
            memory.write(step, state(step, rank), log=0, persist=True)
        persister.want("trainer", rank, 9)
    for rank in range(2):
        assert persister.look("trainer", rank, first=19)
    persister.start()
    try:
        for count in (2, 4):
            assert said.acquire(timeout=HANG_S)
            assert len(persister.results()) == count
        assert [each.step for each in persister.results()] == [19, 19, 9, 9]
    finally:
        persister.close()


def test_the_next_incarnation_of_an_agent_persists_pinned_snapshots(shm, run_dir, until):
    MemorySnapshots(shm, "trainer", 0).write(9, state(9), log=0, persist=True)
    first = Persister(shm, run_dir, {"trainer": 2})
    first.start()
    first.close()
    assert MemorySnapshots(shm, "trainer", 0).hold(9, "persister")  # as if it had died while it read
    second = Persister(shm, run_dir, {"trainer": 2})
    second.start()
    try:
        second.look("trainer", 0)
        assert until(second.results)[0].step == 9
        second.forget(9)
        memory = MemorySnapshots(shm, "trainer", 0)
        for step in range(10, 13):
            memory.write(step, state(step), log=0, persist=False)
        assert memory.steps() == (11, 12)
    finally:
        second.close()


def test_a_snapshot_that_its_rank_has_dropped_meanwhile_is_no_trouble(shm, run_dir, persister, until):
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=0, persist=True)
    memory.drop_after(4)
    persister.want("trainer", 0, 9)
    memory.write(19, state(19), log=0, persist=True)
    persister.look("trainer", 0)
    assert [done.step for done in until(persister.results)] == [19]
    assert persister.warning == ""


def test_a_log_that_nobody_can_read_fails_its_set_and_the_next_one_is_persisted(shm, run_dir, persister, until):
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=1, persist=True)
    SendLog(shm, "trainer", 0).close()
    consumers = 65535  # which are not there
    body = chunk_head(0, 9, 1, RecordKind.CHUNK, True, consumers, 0, 0, 0, 0, 0, 0)
    with open(shm / "log-trainer-0-0", "r+b") as file:
        file.seek(struct.calcsize("<8sIIqQB7xq"))
        file.write(struct.pack("<II", len(body), crc32(body)) + body)
    persister.look("trainer", 0)
    assert "trainer/0: error: unpack_from requires" in until(lambda: persister.warning)
    assert persister.given_up == 9
    SendLog.remove(shm, "trainer", 0)
    memory.write(19, state(19), log=0, persist=True)
    persister.look("trainer", 0)
    assert [done.step for done in until(persister.results)] == [19]
    persister.forget(19)
    assert persister.warning == ""


def test_repeated_failures_are_reported_once(shm, run_dir, persister, until):
    blocker = disk.snapshots_folder(run_dir)
    blocker.write_text("somebody's file")
    memory = MemorySnapshots(shm, "trainer", 0)
    said = set()
    for step in (9, 19, 29):
        memory.write(step, state(step), log=0, persist=True)
        persister.look("trainer", 0)
        until(lambda step=step: persister.given_up == step)
        said.add(persister.warning)
    assert len(said) == 1
    assert blocker.read_text() == "somebody's file"
    blocker.unlink()
    memory.write(39, state(39), log=0, persist=True)
    persister.look("trainer", 0)
    assert [done.step for done in until(persister.results)] == [39]
    persister.forget(39)
    assert persister.warning == ""


def test_many_small_ones_of_a_step_are_made_durable_together_and_another_step_for_itself(shm, run_dir):
    made = Persister(shm, run_dir, {"trainer": TOGETHER + 1})
    for rank in range(TOGETHER + 1):
        memory = MemorySnapshots(shm, "trainer", rank)
        memory.write(9, {"rank": rank}, log=0, persist=True)
        memory.write(19, {"rank": rank}, log=0, persist=True)
    for step in (9, 19):
        for rank in range(TOGETHER + 1):
            made.want("trainer", rank, step)
    for known in (TOGETHER, TOGETHER + 1, 2 * TOGETHER + 1, 2 * TOGETHER + 2):
        assert made.work()
        assert len(made.results()) == known
    assert not made.work()
    for part in made.results():
        for name, (size, _) in part.files.items():
            path = disk.step_folder(run_dir, part.step) / disk.attempt_file(name, part.attempt)
            assert path.stat().st_size == size


def test_one_that_fails_takes_those_of_its_step_with_it_also_those_that_are_not_durable_yet(shm, run_dir):
    made = Persister(shm, run_dir, {"trainer": 3})
    for rank in range(3):
        MemorySnapshots(shm, "trainer", rank).write(9, {"rank": rank}, log=0, persist=True)
    made.look("trainer", 0)
    made.look("trainer", 1)
    SendLog(shm, "trainer", 1).close()
    (shm / "log-trainer-1-0").unlink()
    (shm / "log-trainer-1-0").mkdir()
    made.look("trainer", 2)

    def held():
        ours = (str(shm), str(run_dir))
        return sorted(path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if path.startswith(ours))

    before = held()
    assert made.work()
    assert held() == before
    assert made.given_up == 9
    assert made.results() == []
    assert not [files for _, _, files in os.walk(run_dir) if files]
    assert not made.work()


class GoesBackMeanwhile(Persister):
    """While the first piece is being written, `do` happens."""

    def _check(self, size):
        if size and self.do is not None:
            self.do, do = None, self.do
            do()


@pytest.mark.parametrize(
    "do", [lambda made: made.restarted("trainer", 0, 4, 1), lambda made: made.forget_timeline(1)], ids=["rank", "job"]
)
def test_an_attempt_that_began_before_its_rank_or_the_job_went_back_counts_for_nothing(shm, run_dir, do):
    made = GoesBackMeanwhile(shm, run_dir, {"trainer": 1})
    made.do = lambda: do(made)
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=0, persist=True)
    made.look("trainer", 0)
    assert made.work()
    assert made.results() == []
    assert not [files for _, _, files in os.walk(run_dir) if files]
    made.look("trainer", 0)
    assert made.work()
    (part,) = made.results()
    assert (part.timeline, part.generation) in ((0, 1), (1, 0))


def test_a_late_attempt_leaves_a_complete_set_as_it_is(shm, run_dir, manifest):
    first, late = Persister(shm, run_dir, {"trainer": 1}), Persister(shm, run_dir, {"trainer": 1})
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=0, persist=True)
    first.look("trainer", 0)
    first.work()
    folder = manifest(9, {"trainer": 1}, first.results())
    memory.write(9, state(10), log=0, persist=True)
    late.look("trainer", 0)
    late.work()
    assert disk.verify(folder) == []
    late.forget(9)
    late.work()
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "manifest.json",
        "rank-0-of-1.safetensors",
    ]


def test_a_set_whose_folder_is_removed_meanwhile_because_a_newer_one_is_complete_is_no_trouble(shm, run_dir, manifest):
    made = GoesBackMeanwhile(shm, run_dir, {"trainer": 2})
    disk.step_folder(run_dir, 19).mkdir(parents=True)

    def overtaken():
        manifest(19, {}, [])
        disk.prune(run_dir, 1)

    made.do = overtaken
    memory = MemorySnapshots(shm, "trainer", 0)
    memory.write(9, state(9), log=0, persist=True)
    made.look("trainer", 0)
    made.work()
    assert made.warning == ""
    assert made.results() == []
    assert memory.pinned() == ()
