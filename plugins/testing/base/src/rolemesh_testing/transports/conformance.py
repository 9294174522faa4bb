"""Conformance of a transport: its guarantees for a rank's endpoint, between parties in this process and another."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

from rolemesh.api.batch import Batch, Ragged
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_dataplane.codec import encode
from rolemesh_durable.api.testing import INLINE_BYTES
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.transports.party import EDGE, PATIENCE_S, Distant, Meeting, Party

__all__ = ["TransportConformance"]

MIB = 1 << 20
DTYPES = ("float16", "float32", "float64", "complex64", "int16", "int32", "int64", "uint8", "uint64")
_abandoned: list[Party] = []
"""Parties that could not be closed. The garbage collector would wait for their sockets for ever."""
_TCP = re.compile(r"tcp://\[?(?P<host>[^/\]]+)\]?:(?P<port>\d+)$")


class TransportConformance(PluginConformance):
    """Subclass it with `plugin`, and with ``between_nodes = True`` if it is meant for `transports.remote`.

    Parties are ranks' endpoints with this transport as their only one. The kernel gives a transport frames, and
    payloads in slots of shared memory. The transport must deliver each of them to the peer's inbox, once and in order.
    A send must not wait for the peer.
    """

    kind = "transports"
    between_nodes: ClassVar[bool] = False
    """True if peers may be on another node and cannot see each other's shared memory."""

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def meeting(self, record: PluginRecord, cls: type[Any]) -> Iterator[Meeting]:
        """The parties' common folders, keys and class."""
        meeting = Meeting.of(record.target, dict(self.options), self.between_nodes)
        yield meeting
        meeting.close()

    @pytest.fixture
    def party(self, meeting: Meeting, request: pytest.FixtureRequest) -> Iterator[Callable[..., Party]]:
        """``party(rank, generation=0)`` makes another party. The test's end closes it."""
        made: list[Party] = []

        def make(rank: int, generation: int = 0) -> Party:
            made.append(needed(request, "it cannot be opened", lambda: Party(meeting, rank, generation)))
            return made[-1]

        yield make
        for each in made:
            each.endpoint.stop()
        try:
            _within(lambda: _close(made), "close() of the parties at the end of the test")
        except BaseException:
            _abandoned.extend(made)
            raise

    # --------------------------------------------------------------------------------------------------- what arrives

    def test_its_address_is_a_short_line_of_text(self, party: Callable[..., Party]) -> None:
        """The address travels to every peer, and into the journal."""
        address = party(0).peer.addresses["it"]
        assert isinstance(address, str)
        assert address.isprintable(), f"{address!r} has characters that cannot be printed"
        assert 0 < len(address) < 256, f"the address has {len(address)} characters"

    def test_two_ranks_have_two_addresses(self, party: Callable[..., Party]) -> None:
        """With one address they would get each other's values."""
        assert party(0).peer.addresses["it"] != party(1).peer.addresses["it"]

    def test_values_of_every_size_arrive_as_they_were_sent(self, party: Callable[..., Party]) -> None:
        """The sizes are nothing, one byte, around the limit from which a value lies in shared memory, and some MiB."""
        one, other = party(0), party(1)
        sizes = [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, MIB, 3 * MIB + 5]
        for size in sizes:
            one.send(other.peer, _bytes(size))
        for size, got in zip(sizes, other.wait_for(len(sizes)), strict=True):
            assert np.array_equal(got.value, _bytes(size)), f"a value of {size} bytes arrived as another"

    def test_every_bit_of_every_type_arrives(self, party: Callable[..., Party]) -> None:
        """A value is never rounded: numbers need all their bits, and those of a NaN and the sign of a zero count."""
        one, other = party(0), party(1)
        for step, dtype in enumerate(DTYPES):
            bits = np.frombuffer(Random(dtype).randbytes(2 * INLINE_BYTES + 64), dtype).reshape(-1, 2)
            one.send(other.peer, {"matrix": bits, "turned": bits[::-2].T, "few": bits[:3]})
            got = other.wait_for(step + 1)[step].value
            for name, sent in (("matrix", bits), ("turned", bits[::-2].T), ("few", bits[:3])):
                what = f"{dtype} arrives with other bits, as another type or in another shape"
                assert (got[name].dtype, got[name].shape) == (sent.dtype, sent.shape), what
                assert got[name].tobytes() == sent.tobytes(), what

    def test_a_value_of_many_buffers_arrives_whole(self, party: Callable[..., Party]) -> None:
        """A batch has columns of all kinds and sizes. Each large column is a buffer of its own."""
        one, other = party(0), party(1)
        batch = Batch(
            {
                **{f"c{n}": np.full((7, n * 1000), n, dtype=np.float32) for n in range(12)},
                "ids": Ragged.from_rows([list(range(n)) for n in range(7)]),
                "text": [f"row {n}" for n in range(7)],
            }
        )
        one.send(other.peer, batch)
        [got] = other.wait_for(1)
        assert encode(got.value)[0] == encode(batch)[0]
        assert all(np.array_equal(got.value[f"c{n}"], batch[f"c{n}"]) for n in range(12))
        assert got.value["ids"] == batch["ids"]

    def test_everything_arrives_once_and_in_order(self, party: Callable[..., Party]) -> None:
        """The test sends thousands of small frames, with payloads between them."""
        one, other = party(0), party(1)
        count = 3000
        for step in range(count):
            one.send(other.peer, _bytes(INLINE_BYTES + 64) if step % 500 == 250 else step)
        got = other.wait_for(count)
        assert [each.step for each in got] == list(range(count)), "values arrived in another order, twice, or not"
        _nothing_more(other, count)

    def test_both_directions(self, party: Callable[..., Party]) -> None:
        """A pong answers each ping, many times."""
        one, other = party(0), party(1)
        for step in range(50):
            one.send(other.peer, step)
            other.wait_for(step + 1)
            other.send(one.peer, -step)
            one.wait_for(step + 1)
        assert [each.value for each in one.got] == [-step for step in range(50)]

    def test_several_peers_send_to_one(self, party: Callable[..., Party]) -> None:
        """The values of each sender stay in order, and each names its sender."""
        one, others = party(0), [party(rank) for rank in range(1, 5)]
        for step in range(40):
            for other in others:
                other.send(one.peer, _bytes(INLINE_BYTES + 64) if step == 20 else step)
        got = one.wait_for(160)
        for other in others:
            steps = [each.step for each in got if each.source == other.site.rank]
            assert steps == list(range(40))

    def test_one_payload_goes_to_several_peers(self, party: Callable[..., Party]) -> None:
        """The sender encodes it once, and it lies in shared memory once."""
        one, others = party(0), [party(rank) for rank in range(1, 4)]
        payload = one.send(others[0].peer, _bytes(MIB))
        for other in others[1:]:
            one.send(other.peer, None, payload=payload)
        for other in others:
            assert np.array_equal(other.wait_for(1)[0].value, _bytes(MIB))

    def test_a_slot_may_be_written_again_once_it_was_released(self, party: Callable[..., Party]) -> None:
        """An arrived value is complete. The transport fetches nothing of it later, when the slot may hold another
        value.
        """
        one, other = party(0), party(1)
        for step in range(12):
            payload = one.send(other.peer, np.full(MIB, step, dtype=np.uint8))
            got = other.wait_for(step + 1)[step].value
            assert int(got.min()) == int(got.max()) == step, f"value {step} has bytes of another one"
            other.got[step] = other.got[step].__class__(0, step, None)
            del got
            payload.free()
        assert one.endpoint.pool.free == 1, "the slot was not free when all had released it"

    # --------------------------------------------------------------------------------------------------- who waits

    def test_a_send_does_not_wait_for_a_peer(self, party: Callable[..., Party]) -> None:
        """A computing peer does not read for minutes. Credits limit the values in flight, not the transport."""
        one, other = party(0), party(1)
        _within(lambda: [one.send(other.peer, bytes(4096)) for _ in range(2000)], "2,000 sends of 4 KiB")
        _within(lambda: [one.send(other.peer, _bytes(MIB)) for _ in range(8)], "8 sends of 1 MiB")
        got = other.wait_for(2008)
        assert [each.step for each in got] == list(range(2008))

    def test_connecting_does_not_wait_for_a_peer(self, party: Callable[..., Party]) -> None:
        """The peer may have died a moment before."""
        one, dead = party(0), party(1)
        peer = dead.peer
        dead.close(0)
        _within(lambda: one.send(peer, 1), "a first send to a peer that is gone")

    def test_frames_sent_before_an_orderly_close_arrive(self, party: Callable[..., Party]) -> None:
        """`close(linger_ms)` gives queued values time to leave."""
        one, other = party(0), party(1)
        for step in range(300):
            one.send(other.peer, step)
        closing = threading.Thread(target=one.close, args=(20_000,), daemon=True)
        closing.start()
        assert [each.step for each in other.wait_for(300)] == list(range(300))
        closing.join(PATIENCE_S)
        assert not closing.is_alive(), "close() does not end although all that was queued has arrived"

    def test_closing_keeps_its_time_limit(self, party: Callable[..., Party]) -> None:
        """If the peer does not read, `close(0)` drops queued values."""
        one, other = party(0), party(1)
        for _ in range(200):
            one.send(other.peer, bytes(30_000))
        one.endpoint.stop()
        _within(lambda: one.close(0), "close(0) with 6 MB queued for a peer that does not read")

    # ------------------------------------------------------------------------------------------------------ processes

    def test_between_two_processes(self, party: Callable[..., Party], meeting: Meeting) -> None:
        """Each rank is a process of its own."""
        one = party(0)
        sizes = [1, INLINE_BYTES + 64, MIB, 10]
        distant = Distant(meeting, 1, one.peer)
        try:
            for size in sizes:
                one.send(distant.peer, _bytes(size))
            assert [each.value for each in one.wait_for(len(sizes))] == sizes
        finally:
            distant.kill()

    def test_a_killed_peer_blocks_no_other(self, party: Callable[..., Party], meeting: Meeting) -> None:
        """Sends to a dead peer go on until the master reports its end. They do not disturb other peers."""
        one, other = party(0), party(1)
        distant = Distant(meeting, 2, one.peer)
        one.send(distant.peer, bytes(10))
        one.wait_for(1)
        distant.kill()
        _within(lambda: [one.send(distant.peer, bytes(4096)) for _ in range(500)], "sends to a peer that was killed")
        one.send(other.peer, "alive")
        assert other.wait_for(1)[0].value == "alive"
        _within(lambda: one.endpoint.connect([_next(distant.peer)]), "leaving a peer that was killed")

    def test_the_next_generation_of_a_peer_is_reached(self, party: Callable[..., Party]) -> None:
        """It has another address. Values that were queued for its predecessor do not reach it."""
        one, first = party(0), party(1)
        one.send(first.peer, "first")
        first.wait_for(1)
        first.close(0)
        one.send(first.peer, "lost")
        second = party(1, 1)
        one.send(second.peer, "second")
        assert [each.value for each in second.wait_for(1)] == ["second"]
        _nothing_more(second, 1)

    # ------------------------------------------------------------------------------------------------------- strangers

    def test_it_works_for_single_edges_beside_another_transport(self, meeting: Meeting) -> None:
        """A rank has several transports if a job names one for single edges: they share its inbox."""
        if not meeting.transport().own_sockets:
            pytest.skip("it does not declare own_sockets, so no job can name it for single edges")
        with Party(meeting, 0, beside=True) as one, Party(meeting, 1, beside=True) as two:
            for step, size in enumerate((10, 1_000_000)):
                one.send(two.peer, _bytes(size))
                two.send(one.peer, _bytes(size))
                for party in (one, two):
                    got = party.wait_for(step + 1)[step]
                    assert np.array_equal(got.value, _bytes(size)), f"{size} bytes have not arrived as they were sent"
            assert one.endpoint.sender(*two.peer.ref) is not one.endpoint.sender(*two.peer.ref, EDGE)

    def test_it_has_refused_no_peer_at_first(self, party: Callable[..., Party]) -> None:
        """Peers of the job are not counted as strangers."""
        one, other = party(0), party(1)
        one.send(other.peer, 1)
        other.wait_for(1)
        assert one.transport.refused() == other.transport.refused() == 0

    def test_a_stranger_on_the_network_is_refused_and_counted(self, party: Callable[..., Party]) -> None:
        """A process that connects without the job's keys can send nothing, and disturbs no peer."""
        one, other = party(0), party(1)
        reached = _TCP.match(one.peer.addresses["it"])
        if reached is None:
            pytest.skip("its address is none of the network")
        with socket.create_connection((reached["host"], int(reached["port"])), PATIENCE_S) as stranger:
            stranger.sendall(b"\x01\x00" * 512)
            deadline = time.monotonic() + PATIENCE_S
            while not one.transport.refused() and time.monotonic() < deadline:
                one.endpoint.pump(0.05)
        assert one.transport.refused(), "a connection that sent garbage was not counted by refused()"
        other.send(one.peer, "friend")
        assert [each.value for each in one.wait_for(1)] == ["friend"]

    # ----------------------------------------------------------------------------------------------------------- ends

    def test_nothing_is_left_after_close(self, meeting: Meeting) -> None:
        """No file, thread or descriptor is left, even with connected peers."""
        _talk(meeting)  # what is made once in a process is made here
        before = _held()
        for _ in range(3):
            _talk(meeting)
        left = [str(path.relative_to(meeting.folder)) for path in Path(meeting.folder).rglob("*") if not path.is_dir()]
        assert not left, f"files are left: {', '.join(sorted(left))}"
        _until(lambda: _held().keys() <= before.keys(), lambda: f"left: {sorted(_held().keys() - before.keys())}")

    def test_an_unused_transport_can_be_closed(self, party: Callable[..., Party]) -> None:
        """A rank may have no edges, or its job may end before it starts."""
        _within(party(0).close, "close() of one that nobody has talked to")

    def test_many_connections_are_closed_again(self, party: Callable[..., Party]) -> None:
        """A rank of a long job connects to every generation of its peers."""
        one, other = party(0), party(1)
        peer = other.peer
        for _ in range(5):
            _again(one, peer)
        before = len(_held())
        for _ in range(40):
            _again(one, peer)
        _until(lambda: len(_held()) <= before + 5, lambda: f"{before} descriptors and threads became {len(_held())}")

    def test_several_in_one_process_do_not_disturb_each_other(self, party: Callable[..., Party]) -> None:
        """A test, or a tool, may run ranks of two jobs in one process."""
        one, other = party(0), party(1)
        party(2).close()
        one.send(other.peer, 1)
        assert other.wait_for(1)[0].value == 1


def _close(parties: list[Party]) -> None:
    for each in parties:
        each.close()


def _bytes(size: int) -> np.ndarray[Any, Any]:
    return np.arange(size, dtype=np.uint32).astype(np.uint8)


def _next(peer: Any) -> Any:
    return peer.__class__(peer.role, peer.rank, peer.node, peer.addresses, peer.generation + 1)


def _again(one: Party, peer: Any) -> None:
    """Connect to a peer again, as to a new generation of it."""
    one.send(peer, 1)
    one.endpoint.disconnect(peer.role, peer.rank, linger_ms=1000)


def _talk(meeting: Meeting) -> None:
    with Party(meeting, 0) as one, Party(meeting, 1) as other:
        one.send(other.peer, _bytes(MIB))
        other.send(one.peer, 1)
        other.wait_for(1)
        one.wait_for(1)
        one.got.clear()
        other.got.clear()


def _nothing_more(party: Party, count: int) -> None:
    """Raise `AssertionError` if more than `count` values come. Values in flight get time to arrive."""
    party.endpoint.pump(0.2)
    assert len(party.got) == count, f"{len(party.got) - count} values arrived that were not sent to this peer"


def _held() -> dict[str, int]:
    """Return the process's resources: its threads, and its descriptors by type."""
    held = {f"thread {thread.native_id}": 1 for thread in threading.enumerate()}
    for fd in range(psutil.Process().num_fds() * 2 + 64):
        try:
            held[f"fd {fd}: {os.readlink(f'/proc/self/fd/{fd}')}"] = 1
        except OSError:
            continue
    return held


def _until(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.02)


def _within(call: Callable[[], object], what: str) -> None:
    """Raise `AssertionError` if `call` does not end. Its thread then goes on in the background."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"{what} did not end within {PATIENCE_S:g} s"
    if raised:
        raise raised[0]
