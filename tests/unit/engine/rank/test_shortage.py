"""Ranks that are short of memory or of another resource of the system use little of it, and wait for more."""

import os
import resource
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.unit.engine.rank.flows import STATEFUL

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.protocol.rank.owing import WAITED_S
from rolemesh_durable.protocol.rank.page import BLOCKED
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_durable.rank import shortage
from rolemesh_runtime.digest import digest

MB = 1 << 20


def pair(*, credits=2):
    """data → trainer."""
    ops = (OpCall(0, "data", "next", "data.next", Split()), OpCall(1, "trainer", "train", "trainer.train", None))
    return LogicalGraph("pair", ops, (Edge(0, 0, 1, "x", Split(), Split(), credits=credits),))


def two(size, *, data=0.0, trainer=0.0):
    """Rows of `size` numbers: 48 bytes each for all six rows."""
    return {"data": ("Source", {"pause": data, "size": size}), "trainer": ("Trainer", {"pause": trainer})}


@contextmanager
def small(folder, megabytes):
    """Mount shared memory of this many MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def descriptors(count):
    """At most `count` more than this process has open, in each process that is forked meanwhile.

    Tests that ran before in this process may have left descriptors open, which forks inherit.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + count
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fill(path):
    """All the room there is."""
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def open_files(rank):
    return len(os.listdir(f"/proc/{rank.process.pid}/fd"))


def test_ten_thousand_retained_values_take_their_size_and_no_descriptors(village):
    plan = SnapshotPlan(enabled=True, every=10_000)
    job = village(pair(credits=64), two(840), stateful=STATEFUL, steps=10_000, snapshots=plan, metrics_every=1000)
    with descriptors(256):
        job.start()
    job.finished("data", 1000)
    before = open_files(job.ranks["data", 0])
    job.finished("data", 9_998)
    slots = list(job.shm.rglob("slot-data-0-*"))
    assert len(slots) > 9_900, "nothing is committed yet"
    taken, sent = sum(path.stat().st_blocks * 512 for path in slots), len(slots) * 840 * 48
    assert taken < 1.25 * sent
    assert open_files(job.ranks["data", 0]) < before + 10, "some are for the snapshot"
    for rank in job.ranks.values():
        assert Path(f"/proc/{rank.process.pid}/maps").read_text().count("/slot-") <= 2 * 4096
    job.done()


def holds(rank):
    """Descriptors, maps beside those of slots, and KiB of a rank's own."""
    pid = rank.process.pid
    status = Path(f"/proc/{pid}/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return open_files(rank), sum("/slot-" not in line for line in maps), own


@pytest.mark.parametrize("size", [20, 840], ids=["in frames", "in slots"])
def test_twenty_thousand_steps_hold_as_much_as_the_first(village, size):
    plan = SnapshotPlan(enabled=True, every=50, every_s=0)
    made = two(size)
    job = village(pair(credits=16), made, stateful=STATEFUL, steps=20_000, snapshots=plan, metrics_every=500)
    job.start()
    job.finished("trainer", 4000)
    before = {key: holds(rank) for key, rank in job.ranks.items()}
    job.finished("trainer", 19_900)
    for key, rank in job.ranks.items():
        (files, maps, own), (files_before, maps_before, own_before) = holds(rank), before[key]
        assert files <= files_before + 2, key
        assert maps <= maps_before + 20, key
        assert own <= own_before * 1.05 + 2048, key
    assert len(job.files("log-*")) < 40
    assert len(job.files("slot-*")) < 2000, "those of some commits"
    job.done()


def test_a_rank_with_full_memory_waits_until_commits_free_some(village):
    plan = SnapshotPlan(enabled=True, every=4)
    made = two(MB // 48, trainer=0.01)
    job = village(pair(credits=100), made, stateful=STATEFUL, steps=60, snapshots=plan)
    with small(job.shm, 24):
        job.start()
        job.until(lambda: job.ranks["data", 0].status_page.read().short > MB // 2)
        assert job.ranks["data", 0].status_page.read().phase == BLOCKED
        job.finished("data", 40)
        job.kill(("trainer", 0))
        job.done()
        assert job.ranks["data", 0].status_page.read().short == 0
        job.close()


def test_a_rank_waits_for_room_for_its_snapshot(village):
    made = {"data": ("Source", {"size": 4}), "trainer": ("Trainer", {"size": 5 * MB // 8, "pause": 0.01})}
    plan = SnapshotPlan(enabled=True, every=20)
    job = village(pair(), made, stateful=STATEFUL, steps=60, snapshots=plan)
    with small(job.shm, 24):
        job.start()
        job.until(lambda: job.ranks["trainer", 0].status_page.read().snapshot == 19)
        fill(job.shm / "somebody-elses")
        job.until(lambda: job.ranks["trainer", 0].status_page.read().short)
        assert job.ranks["trainer", 0].status_page.read().step == 39
        (job.shm / "somebody-elses").unlink()
        job.done()
        assert job.ranks["trainer", 0].status_page.read().snapshot == 59
        job.close()


def test_a_rank_fails_clearly_where_memory_stays_full(village, monkeypatch):
    monkeypatch.setattr(shortage, "PATIENCE_S", 0.3)
    never = SnapshotPlan(enabled=True, every=10_000)  # so that no slot is used again
    job = village(pair(), two(MB // 48, data=0.01), stateful=STATEFUL, steps=1000, snapshots=never)
    with small(job.shm, 24):
        job.start()
        job.finished("data", 3)
        fill(job.shm / "somebody-elses")
        with pytest.raises(AssertionError, match="give /dev/shm more room"):
            job.done()
        job.close()


def test_a_rank_that_waits_for_memory_after_an_operator_takes_no_snapshot_of_the_step_before(village):
    plan = SnapshotPlan(enabled=True, every_s=3600, persist_every=10_000)
    job = village(pair(credits=100), two(840, data=0.001), stateful=STATEFUL, steps=2000, snapshots=plan)
    with small(job.shm, 24):
        job.start()
        page, theirs = job.ranks["data", 0].status_page, job.shm / "somebody-elses"
        owed = {}

        def waits():
            """The rank has left out the snapshot of its last step, and waits for memory in the next one, for long."""
            at = page.read()
            if not at.short:
                fill(theirs)
                return False
            if not owed.setdefault(at.step, at.snapshot < at.finished):
                theirs.unlink()  # the rank has just taken one
                job.finished("data", at.finished + 3)
            return owed[at.step] and time.monotonic_ns() - at.since_ns > 2 * WAITED_S * 1e9

        job.finished("data", 20)
        job.until(waits)
        job.kill(("data", 0))
        theirs.unlink()
        assert job.done()["data", 0] == digest({"at": 2000 * 6})
        job.close()
