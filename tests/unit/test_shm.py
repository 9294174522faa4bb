"""Slots are written once, read without a copy, used again, and leave nothing behind."""

import stat

import numpy as np
import pytest

from rolemesh.errors import TransportError
from rolemesh.shm import SlotPool, SlotReader, aligned_size


@pytest.fixture
def pool(tmp_path):
    pool = SlotPool(tmp_path / "job", "slot-a-0")
    yield pool
    pool.close()


def write(pool, *buffers):
    slot = pool.acquire(aligned_size([len(b) for b in buffers]))
    slot.write(buffers)
    return slot


def test_what_is_written_is_read_aligned_and_read_only(pool):
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


def test_a_released_slot_is_used_again_the_best_fit_first(pool):
    small, large = pool.acquire(100), pool.acquire(10 << 20)
    pool.release(large)
    pool.release(small)
    assert pool.acquire(200) is small
    assert pool.acquire(200) is large
    assert len(list(pool.directory.iterdir())) == 2


def test_a_value_that_outgrows_its_slot_replaces_it(pool):
    pool.release(pool.acquire(100))
    grown = pool.acquire(5 << 20)
    assert [path.name for path in pool.directory.iterdir()] == [grown.name]


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
    grown = write(pool, b"x" * (5 << 20))
    reader.read(grown.name, [5 << 20])
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
