"""A consumer gets of a slot bytes that all see and nobody writes or, for tensors, bytes of its own."""

import os
import signal

import numpy as np
import pytest
import torch

from rolemesh_dataplane import mapping
from rolemesh_dataplane.codec import decode, encode
from rolemesh_dataplane.mapping import PrivateMap
from rolemesh_dataplane.shm import SlotPool, aligned_size
from rolemesh_dataplane.slot_reader import SlotReader
from rolemesh_dataplane.transports import TransportError

SIZE = 3 << 20


@pytest.fixture
def pool(tmp_path):
    pool = SlotPool(tmp_path / "job", "slot-a-0")
    yield pool
    pool.close()


class Edge:
    """One slot, and who reads it."""

    def __init__(self, pool):
        self.slot, self.reader = pool.acquire(SIZE), SlotReader(pool.directory)

    def send(self, value):
        self.header, buffers = encode(value)
        self.sizes = [len(buffer) for buffer in buffers]
        assert aligned_size(self.sizes) <= self.slot.capacity
        self.slot.write(buffers)

    def take(self):
        return decode(self.header, self.reader.read(self.slot.name, self.sizes))


@pytest.fixture
def edge(pool):
    return Edge(pool)


def tensor(value):
    return torch.full((SIZE // 8,), value)


def test_a_tensor_may_be_written_to_and_an_array_may_not(edge):
    edge.send({"tensor": torch.ones(1 << 18), "array": np.ones(1 << 18)})
    got = edge.take()
    got["tensor"].mul_(3)
    with pytest.raises(ValueError, match="read-only"):
        got["array"][0] = 3
    assert got["tensor"].sum() == 3 << 18
    assert got["array"].sum() == 1 << 18


def test_a_consumer_that_reads_the_same_slot_again_gets_the_sent_value(edge):
    edge.send(tensor(1))
    first = edge.take()
    first.zero_()
    second = edge.take()
    assert second.sum() == SIZE // 8
    assert first.sum() == 0, "two that are used at once do not share what is written"
    del first, second
    assert edge.take().sum() == SIZE // 8


def test_the_next_value_in_a_slot_is_not_hidden_by_what_was_written_to_the_last_one(edge):
    for value in range(20):
        edge.send(tensor(value))
        got = edge.take()
        assert bool((got == value).all())
        if value % 3 == 0:
            got[value * 1000] = -1
        if value % 3 == 1:
            got.numpy()[:] = -1
        del got


def test_one_map_serves_as_long_as_nobody_keeps_it(edge, monkeypatch):
    made = []
    monkeypatch.setattr(
        PrivateMap, "__init__", lambda self, *of, init=PrivateMap.__init__: made.append(init(self, *of))
    )
    for value in range(10):
        edge.send(tensor(value))
        edge.take().add_(1)
    assert len(made) == 1


def test_it_works_where_the_kernel_does_not_tell_which_pages_were_written(edge, monkeypatch):
    def refuse():
        raise PermissionError(1, "no")

    monkeypatch.setattr(mapping, "_pagemap", refuse)
    for value in range(3):
        edge.send(tensor(value))
        assert int(edge.take().add_(1)[0]) == value + 1


def test_a_forked_child_may_read_and_write_too(edge):
    edge.send(tensor(1))
    got = edge.take()
    got[0] = 5
    child = os.fork()
    if not child:
        signal.alarm(20)
        got[1] = 7
        again = edge.take()
        os._exit(0 if (int(got[0]), int(got[1]), int(again[0]), int(again[1])) == (5, 7, 1, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (int(got[0]), int(got[1])) == (5, 1)


def test_a_slot_that_somebody_has_emptied_is_an_error_and_no_crash(edge):
    edge.send(tensor(1))
    os.truncate(edge.reader._directory / edge.slot.name, 0)
    with pytest.raises(TransportError, match="cannot be mapped"):
        edge.take()
