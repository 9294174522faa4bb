"""The transport `delta`: what arrives equals what was sent, bit for bit, and less travels."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
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
from rolemesh_dataplane.pieces import CUT
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.transports import Site, TransportError
from rolemesh_delta import DeltaTransport
from rolemesh_delta.changes import Broken, apply, difference
from rolemesh_delta.messages import VALUE, decode_value, encode
from rolemesh_delta.receiving import Changed
from rolemesh_delta.transport import DeltaOptions
from rolemesh_durable.api.testing import Endpoint
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


def settled(end: End, number: int) -> None:
    """Wait until the receivers have acknowledged a version."""

    def has() -> bool:
        streams = [*end.transport.producing._streams.values()]
        return bool(streams) and all([*each.has.values()] and min(each.has.values()) >= number for each in streams)

    until(has, "the acknowledgements")


def kinds(end: End) -> list[bytes]:
    """How `end` sends its values from now on, in order: as differences (c), whole (w), or by a neighbour (n)."""
    found: list[bytes] = []
    real = end.transport._send

    def send(socket: Any, messages: Any, edge: int) -> None:
        def seen() -> Iterator[Any]:
            for kind, told, frames in messages:
                if kind == VALUE:
                    value = decode_value(told)
                    found.append(b"n" if value.source else b"c" if value.changes else b"w")
                yield kind, told, frames

        real(socket, seen(), edge)

    end.transport._send = send
    return found


def test_values_that_change_little_travel_as_differences(ends: tuple[End, End]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)
    seen, value = kinds(one), weights()
    for step in range(6):
        sent(one, sender, step, {"w": value, "name": "x", "step": step})
        got = other.take()
        assert got["step"] == step
        np.testing.assert_array_equal(got["w"], value)
        settled(one, step)
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
        settled(one, step)
        value[::9] *= 2


@pytest.mark.parametrize("then", [0, 8], ids=["the same size", "another size"])
def test_a_receiver_that_has_lost_its_version_gets_whole_values(ends: tuple[End, End], then: int) -> None:
    one, other = ends
    sender, value = one.transport.connect(other.address), weights()
    sent(one, sender, 0, {"w": value})
    other.take()
    settled(one, 0)
    seen = kinds(one)
    (held,) = other.transport.receiving._held.values()
    held.number = -1
    value[3] = 4
    for step, each in enumerate((value, value[: NUMBERS - then]), 1):  # the second before an answer to the first
        sent(one, sender, step, {"w": each})
    for each in (value, value[: NUMBERS - then]):
        np.testing.assert_array_equal(other.take()["w"], each)
    assert sorted(seen) == ([b"c", b"w", b"w"] if then else [b"c", b"c", b"w"])


def test_a_new_connection_begins_with_the_whole_value(ends: tuple[End, End]) -> None:
    one, other = ends
    value = weights()
    for _ in range(2):
        sender = one.transport.connect(other.address)
        seen = kinds(one)
        sent(one, sender, 0, {"w": value})
        np.testing.assert_array_equal(other.take()["w"], value)
        assert seen == [b"w"]
        del one.transport._send
        sender.close(0)
        value[0] += 1


def test_values_that_change_everywhere_are_sent_whole_after_three_attempts(ends: tuple[End, End]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)
    seen = kinds(one)
    for step in range(6):
        value = weights(step)
        sent(one, sender, step, {"w": value})
        np.testing.assert_array_equal(other.take()["w"], value)
        settled(one, step)
    assert seen == [b"w", b"c", b"c", b"c", b"w", b"w"]


def within(do: Callable[[], object]) -> None:
    """Run `do`, which must end."""
    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[End]]:
    keys = new_keys()
    made = [End(tmp_path, rank, keys) for rank in range(4)]
    yield made
    for each in made:
        each.close()


def test_consumers_give_each_other_a_value_and_a_dead_one_is_passed_over(four: list[End]) -> None:
    one, *others = four
    senders, value = [one.transport.connect(each.address) for each in others], weights()
    seen = kinds(one)
    for step, left in enumerate(([0, 1, 2], [0, 1, 2], [1, 2], [1, 2])):
        if step == 2:
            others[0].transport.close()  # it was the first in the chain
        payload = Payload({"w": value}, one.pool, 1000)
        for index in range(3):  # the producer does not know yet that it is dead
            senders[index].send_payload(payload, (1, 7, 0, 0, step, 0))
        for index in left:
            np.testing.assert_array_equal(others[index].take()["w"], value)
        value[step::11] += 1
    assert seen[:6] == [b"w", b"n", b"n", b"c", b"n", b"n"]
    others[0].transport.close = lambda: None


def failure(end: End) -> str:
    """Wait until the rank's next look at its transport fails, and return the error."""
    found: list[str] = []

    def fails() -> bool:
        try:
            end.transport.refused()
        except TransportError as error:
            found.append(str(error))
        return bool(found)

    until(fails, "the error of the transport's thread")
    return found[0]


UNREADABLE = [
    [b""], [b"p"], [b"v", b"", b"x"], [b"v", encode([1]), b"x"], [b"d", b"\xc1", b"x"], [b"?", b"", b""],
    [b"v", encode([1, -1, 0, False, [8], 0, "", 0]), b"x" * 48], [b"v", encode([1, 1, 0, False, [8], 0, "", 0]), b"x"],
    [b"v", encode([1, 1, 0, False, [8], 0, "", 0]), CUT],
]  # fmt: skip


@pytest.mark.parametrize("message", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_message_that_cannot_be_read_fails_the_rank_with_cause_place_and_remedy(
    ends: tuple[End, End], message: list[bytes]
) -> None:
    one, other = ends
    one.transport.connect(other.address)

    def spoil() -> None:
        (socket,) = one.transport._peers.values()
        socket.send_multipart(message)

    one.transport.do(spoil)
    told = failure(other)
    assert "role a, rank 1, node n1: the transport delta has received a message that it cannot read: " in told
    assert "→ install the same version of rolemesh-delta on every node" in told


@pytest.mark.parametrize("message", [[b"w"], [b"h", b"\xc1"], [b"d", encode([1, 1, 1, True, 0])]], ids=range(3))
def test_an_answer_that_cannot_be_read_fails_the_producer(ends: tuple[End, End], message: list[bytes]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)
    sent(one, sender, 0, {"w": weights()})
    other.take()
    (held,) = other.transport.receiving._held.values()
    other.transport.do(lambda: other.transport._router.send_multipart([held.owner, *message]))
    assert "cannot read" in failure(one)
    within(lambda: sender.close(0))


def test_an_error_of_the_thread_reaches_a_waiting_rank_and_blocks_nobody(ends: tuple[End, End]) -> None:
    one, other = ends
    sender = one.transport.connect(other.address)

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one.transport.do(fail)
    assert "the transport delta cannot go on: OSError: [Errno 28] No space left on device" in failure(one)
    within(lambda: [sender.send(b"x") for _ in range(5000)])
    within(lambda: sender.close(100))


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (MemoryError(), "no memory for a value", "roles.a.resources.memory_gb"),
        (zmq.ZMQError(errno.EMFILE), "Too many open files", "ulimit -n 65536"),
        (Changed("a value changes"), "gave a value up: a value changes", "has returned or lent"),
        (KeyError(3), "cannot go on: KeyError: 3", "engine.options.transports.remote=tcp"),
    ],
)  # fmt: skip
def test_each_error_has_its_remedy(ends: tuple[End, End], error: Exception, what: str, remedy: str) -> None:
    def fail() -> None:
        raise error

    ends[0].transport.do(fail)
    told = failure(ends[0])
    assert what in told
    assert remedy in told


def test_a_rank_that_waits_fails_when_its_transport_does(tmp_path: Path) -> None:
    site = Site("a", 0, "n0", 0, "127.0.0.1", str(tmp_path), str(tmp_path), new_keys())
    transport = DeltaTransport(DeltaOptions())
    endpoint = Endpoint(site, transports={"it": transport}, local="it", remote="it")

    def fail() -> None:
        raise MemoryError

    transport.do(fail)
    with pytest.raises(TransportError, match="no memory for a value"):
        endpoint.wait()
    endpoint.close(0)


@pytest.mark.parametrize("address", ["nowhere", "tcp://", "tcp://127.0.0.1:1"])
def test_a_neighbour_that_cannot_be_reached_is_passed_over(four: list[End], address: str) -> None:
    one, *others = four
    value, senders = weights(), [one.transport.connect(each.address) for each in others[:2]]
    one.transport.do(lambda: one.transport.producing._addresses.update({1: address}))
    for step in range(2):
        payload = Payload({"w": value}, one.pool, 1000)
        for sender in senders:
            sender.send_payload(payload, (1, 7, 0, 0, step, 0))
        for each in others[:2]:
            np.testing.assert_array_equal(each.take()["w"], value)
        value[step::11] += 1


def test_a_neighbour_that_sends_what_cannot_be_read_is_passed_over(four: list[End]) -> None:
    one, first, second, _ = four
    value, senders = weights(), [one.transport.connect(each.address) for each in (first, second)]
    real = first.transport.receiving.give

    def give(follower: bytes, at: Any) -> None:
        first.transport._router.send_multipart([follower, b"d", b"\xc1", b"x"])
        real(follower, at)

    first.transport.receiving.give = give
    payload = Payload({"w": value}, one.pool, 1000)
    for sender in senders:
        sender.send_payload(payload, (1, 7, 0, 0, 0, 0))
    for each in (first, second):
        np.testing.assert_array_equal(each.take()["w"], value)
    assert first.transport.refused() == second.transport.refused() == 0


def test_it_counts_the_bytes_of_values_and_those_that_travel(four: list[End]) -> None:
    one, *others = four
    value, senders = weights(), [one.transport.connect(each.address) for each in others]
    assert one.transport.traffic() == {}
    for step in range(3):
        payload = Payload({"w": value}, one.pool, 1000)
        for sender in senders:
            sender.send_payload(payload, (1, 7, 0, 0, step, 0))
        for each in others:
            each.take()
        value[step::1000] += 1
    (all_, left), passed = one.transport.traffic()[7], [each.transport.traffic().get(7, (0, 0)) for each in others]
    assert all_ == 9 * value.nbytes
    assert value.nbytes <= left < 1.1 * value.nbytes, "once whole, and two small differences"
    assert [each[0] for each in passed] == [0, 0, 0]
    assert 2 * value.nbytes <= sum(each[1] for each in passed) < 2.2 * value.nbytes, "by two neighbours to two others"


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
