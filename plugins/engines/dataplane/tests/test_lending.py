"""Consumers read lent memory where it is, and its owner never changes what they may still read."""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rolemesh.api.batch import Shard, Shards
from rolemesh.api.port import LocalPort
from rolemesh_dataplane.codec import decode, unflatten
from rolemesh_dataplane.lending import Lender
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.places import runs_of, slots_of
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.slot_reader import SlotReader

MIB = 1 << 20


class Owner:
    """A rank that lends, and the reader of a consumer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool, self.reader = folder, SlotPool(folder, "slot-a-0-0"), SlotReader(folder)
        self.lender = Lender(self.pool)

    def send(self, value: Any) -> Payload:
        payload = Payload(value, self.pool, 1000, None, self.lender)
        payload.users = 1
        return payload

    def take(self, payload: Payload) -> Any:
        header, sizes, _ = unflatten(payload.body, 0, payload.hlen, len(payload.sizes))
        return decode(header, self.reader.read(payload.place, sizes))

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def model() -> dict[str, Any]:
    return {
        "a": np.arange(MIB, dtype=np.float32),
        "b": torch.arange(100_000, dtype=torch.bfloat16).reshape(1000, 100),
        "c": np.ones((3, 5)),
        "none": np.zeros((0, 4)),
    }


def test_a_lent_value_is_sent_without_a_copy(owner: Owner) -> None:
    held = owner.lender.lend(model())
    before = owner.files
    sent = owner.send(held)
    assert slots_of(sent.place)[0] in before
    got = owner.take(sent)
    for name, tensor in model().items():
        assert type(held[name]) is type(tensor)
        assert held[name].dtype == tensor.dtype
        np.testing.assert_array_equal(*(np.asarray(torch.as_tensor(each[name]).float()) for each in (got, model())))


def test_consumers_keep_what_was_sent_when_the_owner_changes_it(owner: Owner) -> None:
    held = owner.lender.lend(model())
    address = held["b"].data_ptr()
    sent = owner.send(held)
    got = owner.take(sent)
    for round_ in range(5):
        owner.lender.take_back()
        held["a"] += 1
        held["b"].fill_(round_)
        again = owner.send(held)
        np.testing.assert_array_equal(owner.take(again)["a"], model()["a"] + round_ + 1)
        assert torch.equal(owner.take(again)["b"], torch.full_like(held["b"], round_))
        np.testing.assert_array_equal(got["a"], model()["a"])
        assert torch.equal(owner.take(sent)["b"], model()["b"])
        again.free()
    assert held["b"].data_ptr() == address


def test_nothing_is_copied_for_a_value_that_nobody_needs_any_more(owner: Owner) -> None:
    held = owner.lender.lend(model())
    for _ in range(3):
        owner.send(held).free()
        files = owner.files
        owner.lender.take_back()
        held["a"] += 1
        assert owner.files == files
    assert owner.pool.used_bytes == owner.lender.own_bytes


def test_a_slot_that_another_rank_forwards_is_left_alone(owner: Owner) -> None:
    relay = SlotPool(owner.folder, "slot-b-0-0")
    held = owner.lender.lend(model())
    sent = owner.send(held)
    forwarded = Payload(owner.take(sent)["a"], relay, 1000, owner.reader)
    assert forwarded.place != sent.place
    sent.free()
    owner.lender.take_back()
    held["a"] += 1
    np.testing.assert_array_equal(owner.take(forwarded), model()["a"])


def test_the_parts_of_a_streamed_value_share_one_slot(owner: Owner) -> None:
    held = owner.lender.lend({f"layer.{i}": np.full((64, 1024), i, np.float32) for i in range(8)})
    chunks = [Shards({name: Shard(array, array.shape, (0, 0))}) for name, array in held.items()]
    sent = [owner.send(chunk) for chunk in chunks]
    assert len({slot for each in sent for slot in slots_of(each.place)}) == 1
    for each in sent[:7]:
        each.free()
    owner.lender.take_back()
    for array in held.values():
        array.fill(99)
    np.testing.assert_array_equal(owner.take(sent[7])["layer.7"].data, np.full((64, 1024), 7, np.float32))
    sent[7].free()
    assert owner.pool.used_bytes == owner.lender.own_bytes


def test_other_data_goes_along_in_a_slot_of_its_own(owner: Owner) -> None:
    held = owner.lender.lend(model())
    value = {**held, "more": np.arange(5000), "odd": held["a"][1:]}
    sent = owner.send(value)
    assert len(slots_of(sent.place)) == 2
    got = owner.take(sent)
    np.testing.assert_array_equal(got["more"], value["more"])
    np.testing.assert_array_equal(got["odd"], value["odd"])


def test_neighbours_in_the_order_of_the_model_are_one_run(owner: Owner) -> None:
    held = owner.lender.lend({f"layer.{i}": np.full((64, 1024), i, np.float32) for i in range(100)})
    sent = owner.send(held)
    assert len(runs_of(sent.place, 100)) == 1


def test_a_slot_that_somebody_has_removed_is_not_shown_again(owner: Owner) -> None:
    held = owner.lender.lend(model())
    for path in owner.folder.iterdir():
        path.unlink()
    sent = owner.send(held)
    np.testing.assert_array_equal(owner.take(sent)["a"], model()["a"])


def test_memory_that_the_author_drops_is_given_back(owner: Owner) -> None:
    held = owner.lender.lend(model())
    sent = owner.send(held)
    del held
    gc.collect()
    np.testing.assert_array_equal(owner.take(sent)["a"], model()["a"])
    sent.free()
    assert owner.pool.used_bytes == 0
    assert owner.lender.own_bytes == 0
    assert owner.lender.shown == []


def test_the_arrays_without_an_engine_are_those_given() -> None:
    given = model()
    assert LocalPort().lend(given)["a"] is given["a"]


def test_without_shared_memory_the_arrays_are_those_given(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolemesh_dataplane.shm.RESERVE", 1 << 60)
    given = model()
    assert owner.lender.lend(given)["a"] is given["a"]
    np.testing.assert_array_equal(Payload(np.arange(3), owner.pool, 1000, None, owner.lender).sizes, [24])


def test_a_region_that_cannot_move_keeps_its_slot_and_loses_no_other(owner: Owner) -> None:
    held = owner.lender.lend(model())
    size = owner.lender.own_bytes
    sent = owner.send(held)
    owner.pool.release(owner.pool.acquire(size))  # a warm slot, so that no file is made
    before = owner.pool.used_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            owner.lender.take_back()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert owner.pool.used_bytes == before
    owner.lender.take_back()
    held["a"][:] = 7
    np.testing.assert_array_equal(owner.take(sent)["a"], model()["a"])
