"""Slots are written once, read without a copy, used again, and leave nothing behind."""

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rolemesh_dataplane import shm, slot_reader
from rolemesh_dataplane.shm import NoSharedMemory, SlotPool, aligned_size, capacity_of
from rolemesh_dataplane.slot_reader import SlotReader
from rolemesh_dataplane.transports import TransportError


@pytest.fixture
def pool(tmp_path):
    pool = SlotPool(tmp_path / "job", "slot-a-0")
    yield pool
    pool.close()


def write(pool, *buffers):
    slot = pool.acquire(aligned_size([len(b) for b in buffers]))
    slot.write(buffers)
    return slot


def test_written_arrays_are_read_aligned_and_read_only(pool):
    buffers = [b"abc", b"", b"x" * 1000]
    slot = write(pool, *buffers)
    reader = SlotReader(pool.directory)
    views = reader.read(slot.name, [3, 0, 1000])
    assert [bytes(view) for view in views] == buffers
    assert all(view.readonly for view in views)
    assert np.frombuffer(views[2], np.uint8).ctypes.data % 64 == 0
    assert [bytes(view) for view in slot.views([3, 0, 1000])] == buffers


def test_folder_and_files_are_private(pool):
    slot = write(pool, b"x")
    assert stat.S_IMODE(pool.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((pool.directory / slot.name).stat().st_mode) == 0o600


def test_a_released_slot_is_used_again_for_values_of_its_size(pool):
    small, large = pool.acquire(40_000), pool.acquire(10 << 20)
    pool.release(large)
    pool.release(small)
    assert pool.acquire(39_000) is small
    assert pool.acquire(39_000) is not large, "most of it would be unused"
    assert pool.acquire(9 << 20) is large


@pytest.mark.parametrize("nbytes", [1, 33_000, 40_000, 65_537, 1 << 20, 1_300_000, 50_000_000, 3 << 30])
def test_a_slot_is_hardly_larger_than_its_value(nbytes):
    assert nbytes <= capacity_of(nbytes) <= nbytes * 1.125 + 4096
    assert capacity_of(nbytes) % 4096 == 0


def test_slots_are_counted_as_large_as_they_are(pool):
    slots = [pool.acquire(40_000) for _ in range(10)]
    taken = sum(path.stat().st_blocks * 512 for path in pool.directory.iterdir())
    assert pool.used_bytes == taken == 10 * 40_960
    pool.release(slots.pop())
    assert (pool.used_bytes, pool.free_bytes) == (9 * 40_960, 40_960)


def test_unused_slots_are_released_after_a_while(pool, monkeypatch):
    monkeypatch.setattr(shm, "is_short", lambda folder: False)  # the disk of this machine may be nearly full
    kept = [pool.acquire(40_000) for _ in range(8)]
    pool.trim(100, 1000.0)
    for slot in kept:
        pool.release(slot)
    pool.trim(120, 1100.0)
    for step in range(20):  # two at a time are needed
        for slot in [pool.acquire(40_000), pool.acquire(40_000)]:
            pool.release(slot)
        pool.trim(120 + step, 1101.0)
    assert pool.free == 8, "the minute is not over"
    pool.trim(125, 1200.0)
    assert pool.free == 8, "nor are 16 steps"
    pool.trim(140, 1200.0)
    assert pool.free == len(list(pool.directory.iterdir())) == 2


def test_no_descriptor_is_kept_and_no_more_maps_than_a_bounded_number(pool, monkeypatch):
    for module in (shm, slot_reader):
        monkeypatch.setattr(module, "MAPS", 64)
    bounded, reader = SlotPool(pool.directory, "slot-b-0"), SlotReader(pool.directory)
    before = len(os.listdir("/proc/self/fd"))
    slots = [write(bounded, b"%d" % number * 100) for number in range(300)]
    for number, slot in enumerate(slots):
        assert bytes(reader.read(slot.name, [100])[0]).startswith(b"%d" % number)
    assert len(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count("/slot-b-0-") <= 2 * 64
    assert bytes(slots[0].views([100])[0]) == bytes(reader.read(slots[0].name, [100])[0])
    bounded.close()


@pytest.fixture
def full():
    """A file system of 24 MiB."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def test_full_memory_is_an_error_and_leaves_no_file(full):
    pool = SlotPool(full / "job", "slot-a-0")
    slots = [pool.acquire(5 << 20) for _ in range(4)]
    with pytest.raises(NoSharedMemory, match="no shared memory for 5 MiB") as caught:
        pool.acquire(5 << 20)
    assert caught.value.nbytes == 5 << 20
    assert len(list(pool.directory.iterdir())) == 4
    pool.release(slots.pop())
    slots.append(pool.acquire(3 << 20))
    assert len(list(pool.directory.iterdir())) == 4, "what is free goes before memory is short"
    pool.await_memory(lambda make: (pool.release(slots.pop()), pool.give_back(1), make())[-1])
    assert pool.acquire(4 << 20).capacity == 4 << 20
    slots.clear()
    pool.close()


def test_nothing_is_kept_warm_where_memory_is_short(full):
    pool, reader = SlotPool(full / "job", "slot-a-0"), SlotReader(full / "job")
    slots = [pool.acquire(2 << 20) for _ in range(10)]
    reader.read(slots[0].name, [1])
    pool.release(slots[0])
    pool.trim(0, 0.0)
    reader.trim(0, 0.0)
    assert pool.free == 0
    assert os.statvfs(full).f_bavail * 4096 == 6 << 20, "no map keeps what is unlinked"


def test_a_view_outlives_the_slot_the_reader_and_the_pool(pool):
    slot = write(pool, b"kept" * 1000)
    reader = SlotReader(pool.directory)
    view = reader.read(slot.name, [4000])[0]
    reader.close()
    pool.close()
    assert list(pool.directory.iterdir()) == []
    assert bytes(view) == b"kept" * 1000


def test_a_reader_forgets_maps_of_slots_that_are_gone(pool):
    reader = SlotReader(pool.directory)
    first = write(pool, b"one")
    reader.read(first.name, [3])
    pool.release(first)
    pool.give_back(1)
    reader.trim(16, 100.0)
    reader.trim(32, 200.0)
    with pytest.raises(TransportError, match="is gone"):
        reader.read(first.name, [3])


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden"])
def test_a_name_cannot_leave_the_jobs_folder(pool, name):
    with pytest.raises(TransportError, match="leaves the job's directory"):
        SlotReader(pool.directory).read(name, [1])


def test_sizes_beyond_the_slot_are_refused(pool):
    slot = write(pool, b"x")
    with pytest.raises(TransportError, match="bytes in a slot of"):
        SlotReader(pool.directory).read(slot.name, [slot.capacity + 1])
