"""The transport `delta`: what arrives equals what was sent, bit for bit, and less travels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import HANG_S, until

from rolemesh_dataplane.codec import decode, unflatten
from rolemesh_dataplane.curve import new_keys
from rolemesh_dataplane.inbox import Inbox
from rolemesh_dataplane.payload import HEAD, Payload
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.transports import Site
from rolemesh_delta import DeltaTransport
from rolemesh_delta.changes import Broken, apply, difference
from rolemesh_delta.transport import DeltaOptions
from rolemesh_testing import TransportConformance

NUMBERS = 600_000
"""Elements of float32 in the test's values: more than `DeltaOptions.min_bytes`."""


class TestConformance(TransportConformance):
    plugin = "delta"
    between_nodes = True
    options = {"min_bytes": 1000}
    bad_options = ({"level": 30},)


class End:
    """A rank with the transport."""

    def __init__(self, folder: Path, rank: int, keys: Any) -> None:
        self.context, self.pool = zmq.Context(), SlotPool(folder / "shm", f"slot-a-{rank}-0")
        self.inbox = Inbox(self.context, str(folder / f"inbox-{rank}"))
        self.transport = DeltaTransport(DeltaOptions())
        self.address = self.transport.open(
            self.inbox, Site("a", rank, f"n{rank}", 0, "127.0.0.1", str(folder), str(folder / "shm"), keys)
        )

    def take(self) -> Any:
        assert self.inbox.socket.poll(HANG_S * 1000)
        frame, *more = self.inbox.socket.recv_multipart(copy=False)
        data = frame.buffer
        *_, hlen, count = HEAD.unpack_from(data)
        header, _, _ = unflatten(data, HEAD.size, hlen, count)
        return decode(header, [each.buffer for each in more])

    def close(self) -> None:
        self.transport.close()
        self.inbox.close()
        self.context.destroy(linger=0)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[End, End]]:
    keys = new_keys()
    made = End(tmp_path, 0, keys), End(tmp_path, 1, keys)
    yield made
    for each in made:
        each.close()


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(NUMBERS).astype(np.float32)


def sent(end: End, sender: Any, step: int, value: Any) -> None:
    sender.send_payload(Payload(value, end.pool, 1000), (1, 7, 0, 0, step, 0))


def settled(sender: Any, number: int) -> None:
    """Wait until the receiver has acknowledged a version."""
    key = (7, 0, 0)
    import time

    ends = time.monotonic() + HANG_S
    while key not in sender._versions or sender._versions[key].has < number:
        assert time.monotonic() < ends
        time.sleep(0.005)


def kinds(sender: Any) -> list[bytes]:
    """The kinds of messages that `sender` has sent, in order, from now on."""
    found: list[bytes] = []
    whole, changed = sender._send_whole, sender._send

    def send_whole(*args: Any) -> None:
        found.append(b"w")
        whole(*args)

    def send(socket: Any, frames: Any, dtypes: Any) -> None:
        before = len(found)
        changed(socket, frames, dtypes)
        if len(found) == before and dtypes is not None:
            found.append(b"c")

    sender._send_whole, sender._send = send_whole, send
    return found


def test_values_that_change_little_travel_as_differences(ends: tuple[End, End]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)
    seen, value = kinds(sender), weights()
    for step in range(6):
        sent(one, sender, step, {"w": value, "name": "x", "step": step})
        got = other.take()
        assert got["step"] == step
        np.testing.assert_array_equal(got["w"], value)
        settled(sender, step)
        value[:: 7 + step] += 1
    assert seen == [b"w"] + [b"c"] * 5
    sender.close(0)


def test_a_receiver_that_writes_to_what_it_got_does_not_change_the_next_value(ends: tuple[End, End]) -> None:
    one, other = ends
    sender, value = one.transport.connect(other.address), weights()
    for step in range(3):
        sent(one, sender, step, {"w": value})
        got = other.take()["w"]
        np.testing.assert_array_equal(got, value)
        flat = np.frombuffer(memoryview(got).cast("B"), np.uint8)
        if flat.flags.writeable:
            flat[:] = 0
        settled(sender, step)
        value[::9] *= 2


def test_a_receiver_that_has_lost_its_version_gets_the_whole_value(ends: tuple[End, End]) -> None:
    one, other = ends
    sender, value = one.transport.connect(other.address), weights()
    sent(one, sender, 0, {"w": value})
    other.take()
    settled(sender, 0)
    seen = kinds(sender)
    sender._versions[7, 0, 0].number += 5  # as if versions had been lost between
    sender._versions[7, 0, 0].has += 5
    value[3] = 4
    sent(one, sender, 1, {"w": value})
    np.testing.assert_array_equal(other.take()["w"], value)
    assert seen == [b"c", b"w"]


def test_a_lost_difference_is_made_good_before_the_next_value(ends: tuple[End, End]) -> None:
    one, other = ends
    sender, value = one.transport.connect(other.address), weights()
    sent(one, sender, 0, {"w": value})
    other.take()
    settled(sender, 0)
    sender._versions[7, 0, 0].number += 5
    sender._versions[7, 0, 0].has += 5
    wanted = []
    for step in range(1, 4):  # without a wait for answers
        value[step] = 4
        wanted.append(value.copy())
        sent(one, sender, step, {"w": wanted[-1]})
    for each in wanted:
        np.testing.assert_array_equal(other.take()["w"], each)


def test_a_lost_difference_is_made_good_before_a_value_of_another_size(ends: tuple[End, End]) -> None:
    one, other = ends
    sender, value = one.transport.connect(other.address), weights()
    sent(one, sender, 0, {"w": value})
    other.take()
    settled(sender, 0)
    sender._versions[7, 0, 0].number += 5
    sender._versions[7, 0, 0].has += 5
    value[3] = 4
    take, both = other.transport._take, Event()
    other.transport._take = lambda *args: (both.wait(HANG_S), take(*args))  # no answer before both are on their way
    for step, each in enumerate((value, value[:-8]), 1):
        sent(one, sender, step, {"w": each})
    until(sender._todo.empty, "the sender's thread has both values")
    both.set()
    for each in (value, value[:-8]):
        np.testing.assert_array_equal(other.take()["w"], each)


def test_a_new_connection_begins_with_the_whole_value(ends: tuple[End, End]) -> None:
    one, other = ends
    value = weights()
    for _ in range(2):
        sender = one.transport.connect(other.address)
        seen = kinds(sender)
        sent(one, sender, 0, {"w": value})
        np.testing.assert_array_equal(other.take()["w"], value)
        assert seen == [b"w"]
        sender.close(0)
        value[0] += 1


def test_values_that_change_everywhere_are_sent_whole_after_three_attempts(ends: tuple[End, End]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)
    seen = kinds(sender)
    for step in range(6):
        value = weights(step)
        sent(one, sender, step, {"w": value})
        np.testing.assert_array_equal(other.take()["w"], value)
        settled(sender, step)
    assert seen == [b"w", b"c", b"c", b"c", b"w", b"w"]


DTYPES = ["float32", "bfloat16", "int64", "", "uint8"]


@given(st.data())
def test_a_difference_makes_the_new_version_of_the_old_one(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 4000))
    dtype, level = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([-3, 1, 9]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old = rng.integers(0, 256, size, np.uint8)
    new = old.copy()
    share = data.draw(st.sampled_from([0.0, 0.001, 0.1, 0.9]))
    changed = rng.random(size) < share
    new[changed] = rng.integers(0, 256, changed.sum(), np.uint8)
    there, here = old.copy(), old.copy()
    change = difference(here, new, dtype, level)
    np.testing.assert_array_equal(here, new)
    apply(there, change)
    np.testing.assert_array_equal(there, new)


@given(st.data())
def test_a_difference_of_another_version_or_a_damaged_one_is_refused(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old = rng.integers(0, 256, 800, np.uint8)
    new = old.copy()
    new[data.draw(st.integers(0, 799))] ^= 1
    change = difference(old.copy(), new, "float32", 1)
    import msgspec

    wrong = data.draw(
        st.sampled_from(
            [
                {"digest": change.digest ^ 1},
                {"size": 796},
                {"width": 3},
                {"count": 10**9},
                {"count": -1},
                {"gap": 5},
                {"gaps": b"no"},
                {"changed": change.changed[:-1]},
            ]
        )
    )
    with pytest.raises(Broken):
        apply(old.copy(), msgspec.structs.replace(change, **wrong))
    other = old.copy()
    other[5] ^= 255
    with pytest.raises(Broken):
        apply(other, change)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="level"):
        DeltaOptions(level=30)
