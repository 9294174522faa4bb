"""Copies of snapshots between agents, over tcp with the job's keys."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import encode, flatten
from rolemesh_dataplane.shm import SlotPool
from rolemesh_dataplane.transports import TransportKeys
from rolemesh_durable.extensions.replicas.frames import DONE, IMAGE, OFFER, PIECE
from rolemesh_durable.extensions.replicas.replicas import Replicas
from rolemesh_durable.extensions.replicas.replication import Replication
from rolemesh_durable.extensions.replicas.store import Image, ReplicaStore
from rolemesh_durable.protocol.messages import Stored
from rolemesh_runtime.digest import digest


def make_keys() -> TransportKeys:
    pairs = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(2)]
    return TransportKeys(*pairs[0], *pairs[1])


class Node:
    """An agent's folder and its end of the ring."""

    def __init__(self, name: str, keys: TransportKeys, within: Path | None = None) -> None:
        self.name, self.keys = name, keys
        self.shm = Path(tempfile.mkdtemp(prefix="snapshot-test-", dir=within))
        self.start()

    def start(self) -> None:
        config: Any = SimpleNamespace(agent=self.name, host="127.0.0.1", job=SimpleNamespace(keys=self.keys))
        self.replicas = Replicas(config, self.shm)

    def memory(self, role: str, rank: int) -> MemorySnapshots:
        return MemorySnapshots(self.shm, role, rank)


@pytest.fixture
def nodes() -> Iterator[Callable[..., list[Node]]]:
    made: list[Node] = []

    def make(*names: str, within: Path | None = None) -> list[Node]:
        keys = make_keys()
        made.extend(Node(name, keys, within if name == "b" else None) for name in names)
        for node, following in zip(made, made[1:] + made[:1], strict=True):
            node.replicas.copies_to(following.replicas.address if following is not node else "")
        return made

    yield make
    for node in made:
        node.replicas.close()
        shutil.rmtree(node.shm)


def state(step, size=400_000):
    return {"x": np.full(size, step, np.float32), "step": step}


def snapshot(node, role, rank, step):
    node.memory(role, rank).write(step, state(step), log=step, persist=False)
    node.replicas.offer(role, rank, step)


def test_a_snapshot_is_copied_to_the_next_agent_and_fetched_from_it(nodes, until):
    a, b, c = nodes("a", "b", "c")
    snapshot(a, "trainer", 1, 4)
    until(lambda: a.replicas.replicated("trainer", 1) == 4)
    until(lambda: b.replicas.held() == [Stored("trainer", 1, (4,), copy=True)])
    assert c.replicas.held() == []
    c.replicas.fetch(b.replicas.address, "trainer", 1, 4)
    assert until(c.replicas.fetched) == [("trainer", 1, "")]
    found = c.memory("trainer", 1).read(4)
    assert found.log == 4
    assert digest(found.state) == digest(state(4))
    c.memory("trainer", 1).write(5, state(5), log=5, persist=False)
    assert c.memory("trainer", 1).steps() == (4, 5)
    assert b.replicas.held() == [Stored("trainer", 1, (4,), copy=True)]


def test_the_ring_closes_and_the_last_two_are_kept(nodes, until):
    a, b = nodes("a", "b")
    for step in range(5):
        snapshot(b, "data", 0, step)
        until(lambda step=step: b.replicas.replicated("data", 0) == step)
    until(lambda: a.replicas.held() == [Stored("data", 0, (3, 4), copy=True)])  # room is made after the answer
    until(lambda: {path.name for path in (a.shm / "replicas" / "data-0").iterdir()} == {"step-3", "step-4"})


def test_a_rank_comes_back_on_the_node_that_keeps_its_copy(nodes, until):
    a, b = nodes("a", "b")
    snapshot(a, "trainer", 0, 3)
    until(lambda: a.replicas.replicated("trainer", 0) == 3)
    b.replicas.fetch(b.replicas.address, "trainer", 0, 3)
    assert until(b.replicas.fetched) == [("trainer", 0, "")]
    assert digest(b.memory("trainer", 0).read(3).state) == digest(state(3))
    until(lambda: b.replicas.held() == [])


def test_the_send_log_goes_with_the_snapshot(nodes, until):
    a, b, c = nodes("a", "b", "c")
    log, pool = SendLog(a.shm, "data", 0), SlotPool(a.shm, "slot-data-0-0")
    large, small = np.arange(300_000), np.arange(3)
    header, buffers = encode(large)
    slot = pool.acquire(sum(map(len, buffers)))
    slot.write(buffers)
    sizes = [len(buffer) for buffer in buffers]
    log.chunk(0, 5, 0, True, 1, (0,), flatten(header, sizes, ()), len(header), 1, place=slot.name)
    header, buffers = encode(small)
    log.chunk(1, 5, 0, True, 1, (0, 1), flatten(header, [24], buffers), len(header), 1)
    a.memory("data", 0).write(5, None, log=log.position, persist=False)
    log.chunk(1, 6, 0, True, 1, (0, 1), flatten(header, [24], buffers), len(header), 1)
    a.replicas.offer("data", 0, 5)
    until(lambda: a.replicas.replicated("data", 0) == 5)
    shutil.rmtree(a.shm / "replicas", ignore_errors=True)
    c.replicas.fetch(b.replicas.address, "data", 0, 5)
    assert until(c.replicas.fetched) == [("data", 0, "")]
    position = c.memory("data", 0).read(5).log
    records = SendLog.read(c.shm, "data", 0, position)
    assert [(r.edge, r.step, r.consumers) for r in records] == [(0, 5, (0,)), (1, 5, (0, 1))]
    (header, (data,)) = records[0].load(c.shm)
    assert np.array_equal(np.frombuffer(data, np.int64), large)
    pool.close()
    log.close()


def test_a_rank_may_go_on_while_its_snapshot_is_copied(nodes, until):
    a, b = nodes("a", "b")
    for step in range(200):
        snapshot(a, "trainer", 0, step)
    until(lambda: a.replicas.replicated("trainer", 0) == 199)
    (kept,) = until(lambda: [held for held in b.replicas.held() if held.steps[-1] == 199])
    b.replicas.fetch(b.replicas.address, "trainer", 0, 199)
    until(b.replicas.fetched)
    assert kept.copy
    assert digest(b.memory("trainer", 0).read(199).state) == digest(state(199))
    snapshot(a, "trainer", 0, 200)
    until(lambda: a.replicas.replicated("trainer", 0) == 200)
    a.memory("trainer", 0).write(201, state(201), log=0, persist=False)
    until(lambda: len(a.memory("trainer", 0).steps()) == 2)


def test_an_image_that_nobody_has_is_an_error_of_the_fetch(nodes, until):
    a, b = nodes("a", "b")
    a.replicas.fetch(b.replicas.address, "trainer", 0, 7)
    ((role, rank, error),) = until(a.replicas.fetched)
    assert (role, rank) == ("trainer", 0)
    assert "has no copy of trainer/0 at step 7 any more" in error
    a.replicas.fetch(a.replicas.address, "trainer", 0, 7)
    assert "this agent has no copy" in until(a.replicas.fetched)[0][2]


def test_the_memory_of_a_rank_that_has_left_is_fetched_too(nodes, until):
    a, b = nodes("a", "b")
    a.memory("data", 0).write(2, state(2), log=0, persist=False)
    b.replicas.fetch(a.replicas.address, "data", 0, 2)
    assert until(b.replicas.fetched) == [("data", 0, "")]
    assert digest(b.memory("data", 0).read(2).state) == digest(state(2))


def test_the_next_incarnation_keeps_what_it_held_and_is_found_again(nodes, until):
    a, b = nodes("a", "b")
    snapshot(a, "trainer", 0, 1)
    until(lambda: a.replicas.replicated("trainer", 0) == 1)
    b.replicas.close()
    b.start()
    assert b.replicas.held() == [Stored("trainer", 0, (1,), copy=True)]
    snapshot(a, "trainer", 0, 2)
    a.replicas.copies_to(b.replicas.address)
    b.replicas.copies_to(a.replicas.address)
    until(lambda: a.replicas.replicated("trainer", 0) == 2)
    a.replicas.close()
    a.start()
    a.replicas.copies_to(b.replicas.address)
    a.replicas.offer("trainer", 0, 2)
    until(lambda: a.replicas.replicated("trainer", 0) == 2)


def test_forgetting_drops_every_copy(nodes, until):
    a, b = nodes("a", "b")
    snapshot(a, "trainer", 0, 1)
    until(lambda: a.replicas.replicated("trainer", 0) == 1)
    a.replicas.clear(1)
    b.replicas.clear(1)
    until(lambda: b.replicas.held() == [])
    assert a.replicas.replicated("trainer", 0) == -1


def test_a_stranger_gets_nothing(nodes, until):
    a, b = nodes("a", "b")
    stranger = Node("c", make_keys())
    try:
        snapshot(a, "trainer", 0, 1)
        until(lambda: a.replicas.replicated("trainer", 0) == 1)
        stranger.replicas.fetch(b.replicas.address, "trainer", 0, 1)
        snapshot(a, "trainer", 0, 2)
        until(lambda: a.replicas.replicated("trainer", 0) == 2)
        assert stranger.replicas.fetched() == []
        assert stranger.memory("trainer", 0).steps() == ()
    finally:
        stranger.replicas.close()
        shutil.rmtree(stranger.shm)


def test_an_agent_without_the_jobs_key_gets_nothing_and_is_counted(nodes, until):
    (a,) = nodes("a")
    snapshot(a, "trainer", 0, 4)
    stranger = Node("stranger", make_keys())
    try:
        stranger.replicas.fetch(a.replicas.address, "trainer", 0, 4)
        until(lambda: a.replicas.refused >= 1)
        assert stranger.replicas.fetched() == []
        assert stranger.replicas.refused == 0
    finally:
        stranger.replicas.close()
        shutil.rmtree(stranger.shm)


def full(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast


def test_a_full_store_is_said_at_both_ends_and_copies_go_on_when_there_is_room(small_disk, nodes, until):
    a, b = nodes("a", "b", within=small_disk)
    ballast = full(small_disk)
    snapshot(a, "trainer", 0, 4)
    assert "no copy of trainer/0 can be kept here: No space left on device" in until(lambda: b.replicas.warning)
    assert "trainer/0 has no copy on another node, and commits wait for it" in until(lambda: a.replicas.warning)
    assert "No space left on device" in a.replicas.warning
    assert a.replicas.replicated("trainer", 0) == -1
    ballast.unlink()
    until(lambda: a.replicas.replicated("trainer", 0) == 4)
    until(lambda: not a.replicas.warning and not b.replicas.warning)


def test_a_fetch_without_room_ends_with_an_error_and_the_next_one_succeeds(small_disk, nodes, until):
    a, b = nodes("a", "b", within=small_disk)
    a.memory("trainer", 0).write(4, state(4), log=4, persist=False)
    ballast = full(small_disk)
    b.replicas.fetch(a.replicas.address, "trainer", 0, 4)
    ((_, _, error),) = until(b.replicas.fetched)
    assert "No space left on device" in error
    ballast.unlink()
    b.replicas.fetch(a.replicas.address, "trainer", 0, 4)
    assert until(b.replicas.fetched) == [("trainer", 0, "")]


def test_no_message_ends_the_thread(nodes, until):
    a, b = nodes("a", "b")
    for kind in (OFFER, DONE, IMAGE, PIECE, b"?"):
        for body in (7, ("trainer", 0), ("trainer", 0, 1, None, "../x", 0, -1), {}):
            a.replicas._do(lambda kind=kind, body=body: a.replicas._send(b.replicas.address, kind, body))
            a.replicas._do(
                lambda body=body: a.replicas._logic.answered(b"image", msgspec.msgpack.encode(body), b"", 0.0)
            )
    snapshot(a, "trainer", 0, 1)
    until(lambda: a.replicas.replicated("trainer", 0) == 1)


def test_a_copy_of_what_a_rank_had_before_it_went_back_does_not_count(nodes, until):
    a, b = nodes("a", "b")
    for step in (2, 4):
        snapshot(a, "trainer", 0, step)
        until(lambda step=step: a.replicas.replicated("trainer", 0) == step)
    a.memory("trainer", 0).drop_after(2)
    a.replicas.restarted("trainer", 0, 2, 1)
    assert a.replicas.replicated("trainer", 0) == 2
    a.memory("trainer", 0).write(4, state(44), log=4, persist=False)
    a.replicas.offer("trainer", 0, 4)
    until(lambda: a.replicas.replicated("trainer", 0) == 4)
    b.replicas.fetch(b.replicas.address, "trainer", 0, 4)
    assert until(b.replicas.fetched) == [("trainer", 0, "")]
    assert digest(b.memory("trainer", 0).read(4).state) == digest(state(44))


def test_a_copy_that_a_newer_one_has_pushed_out_does_not_count_though_that_was_never_acknowledged(tmp_path):
    shms = {name: tmp_path / name for name in "ab"}
    for shm in shms.values():
        shm.mkdir()
    link: list[tuple[str, str, bytes, Any]] = []
    ends = {
        name: Replication(
            shm, name, lambda to, kind, body, name=name: link.append((name, to, kind, msgspec.msgpack.encode(body)))
        )
        for name, shm in shms.items()
    }
    a, b = ends["a"], ends["b"]
    a.offers.connect("b")

    def copy(step: int, now: float, lost: bytes = b"") -> None:
        MemorySnapshots(shms["a"], "trainer", 0).write(step, state(step, 4), log=step, persist=False)
        a.offers.offer("trainer", 0, step)
        a.tick(now)
        while link:
            source, target, kind, body = link.pop(0)
            if kind != lost and (data := ends[target].asked(kind, body, now)) is not None:
                ends[source].answered(kind, body, data, now)

    copy(5, 0.0)
    MemorySnapshots(shms["a"], "trainer", 0).write(7, state(7, 4), log=7, persist=True)  # taken, but never copied
    copy(8, 2.0)
    assert a.offers.copied("trainer", 0, 0, 0, -1) == 8
    copy(11, 4.0, lost=DONE)
    assert b.held == [Stored("trainer", 0, (8, 11), copy=True)]
    assert a.offers.copied("trainer", 0, 0, 0, -1) == 8
    a.offers.restarted("trainer", 0, 7, 1)
    assert a.offers.copied("trainer", 0, 0, 1, 7) == -1
    MemorySnapshots(shms["a"], "trainer", 0).drop_after(7)
    copy(9, 6.0)
    assert a.offers.copied("trainer", 0, 0, 1, 7) == 9
    assert b.held == [Stored("trainer", 0, (9,), copy=True)]


def test_copies_are_not_made_across_timelines(nodes, until):
    a, b = nodes("a", "b")
    snapshot(a, "trainer", 0, 2)
    until(lambda: a.replicas.replicated("trainer", 0) == 2)
    b.replicas.clear(1)
    until(lambda: b.replicas.held() == [])
    snapshot(a, "trainer", 0, 3)  # a does not know yet that the job has gone back
    snapshot(b, "data", 0, 3)
    a.replicas.clear(1)
    assert a.replicas.replicated("trainer", 0) == -1
    until(lambda: b.replicas.replicated("data", 0) == 3)
    assert b.replicas.held() == []


def test_the_copies_that_came_last_are_kept_also_by_the_next_incarnation(tmp_path, monkeypatch):
    store = ReplicaStore(tmp_path)
    for serial, step in enumerate((7, 3)):  # the rank went back, and took step 3 again
        image = Image("work", 0, step, 0, (), (0, serial, serial))
        store.finish(image, store.begin(image)[0])
    real = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: sorted(real(self, pattern)))  # a folder has any order
    again = ReplicaStore(tmp_path)
    image = Image("work", 0, 4, 0, (), (0, 2, 2))
    again.finish(image, again.begin(image)[0])
    assert [stored.steps for stored in again.held()] == [(3, 4)]


def test_an_offer_of_what_is_gone_from_memory_makes_room_for_the_next_one(tmp_path):
    sent: list[Any] = []
    logic = Replication(tmp_path, "a", lambda address, kind, body: sent.append((kind, body)))
    logic.offers.connect("b")
    memory = MemorySnapshots(tmp_path, "work", 0)
    memory.write(0, {"x": np.zeros(8)}, log=0, persist=False)
    logic.offers.offer("work", 0, 0)
    logic.tick(0.0)
    offered = sent[-1][1]
    memory.clear()
    memory.write(1, {"x": np.ones(8)}, log=0, persist=False)
    logic.offers.offer("work", 0, 1)
    asked = msgspec.msgpack.encode(("work", 0, 0, offered.stamp))
    assert msgspec.msgpack.decode(logic.asked(IMAGE, asked, 0.5)) is None
    logic.tick(0.6)
    assert (sent[-1][0], sent[-1][1].step) == (OFFER, 1)
    memory.close()
    logic.offers.close()


def test_a_mate_is_offered_once_all_mates_have_a_snapshot(tmp_path):
    sent: list[Any] = []
    logic = Replication(tmp_path, "a", lambda address, kind, body: sent.append((kind, body)))
    logic.offers.connect("b")
    for rank in range(2):
        logic.offers.restarted("work", rank, -1, 0, collective=True)
    for rank in range(2):
        memory = MemorySnapshots(tmp_path, "work", rank)
        memory.write(0, {"x": np.zeros(8)}, log=0, persist=False)
        memory.close()
        logic.offers.offer("work", rank, 0)
        logic.tick(float(rank))
        assert [(body.rank, body.step) for _, body in sent] == [(0, 0), (1, 0)][: 2 * rank]
    logic.offers.close()


def test_mates_are_offered_together_and_of_one_step_that_all_of_them_have(tmp_path):
    sent: list[Any] = []
    logic = Replication(tmp_path, "a", lambda address, kind, body: sent.append((kind, body)))
    offers = logic.offers
    offers.connect("b")
    for rank, steps in enumerate(((7, 8), (8, 9))):
        memory = MemorySnapshots(tmp_path, "work", rank)
        for step in steps:
            memory.write(step, {"x": np.zeros(8)}, log=0, persist=False)
        memory.close()
        offers.restarted("work", rank, -1, 0, collective=True)
        offers.offer("work", rank, steps[-1])

    def offered(now: float) -> set[tuple[int, int]]:
        sent.clear()
        logic.tick(now)
        return {(body.rank, body.step) for kind, body in sent if kind == OFFER}

    assert offered(0.0) == {(0, 8), (1, 8)}
    stamps = {body.rank: body.stamp for _, body in sent}
    logic.asked(DONE, msgspec.msgpack.encode(("work", 0, 8, stamps[0])), 0.1)
    memory = MemorySnapshots(tmp_path, "work", 0)
    memory.write(9, {"x": np.ones(8)}, log=0, persist=False)
    memory.close()
    offers.offer("work", 0, 9)
    assert offered(0.2) == set(), "the other one's copy is not there yet"
    logic.asked(DONE, msgspec.msgpack.encode(("work", 1, 8, stamps[1])), 0.3)
    assert [offers.copied("work", rank, 0, 0, -1) for rank in (0, 1)] == [8, 8]
    assert offered(0.4) == {(0, 9), (1, 9)}
    logic.offers.close()
