"""The protocol of `delta` under a random scheduler: relays die or freeze; all get the right bits, in order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rolemesh_dataplane.payload import HEAD
from rolemesh_delta import messages, producing, receiving
from rolemesh_delta.messages import GIVE, LACKS, PART, PLAIN, VALUE, decode_at, decode_value
from rolemesh_delta.producing import Item, Producing
from rolemesh_delta.receiving import PATIENCE_S, Ask, Changed, Deliver, Receiving, Reply

PART_BYTES = 64
NUMBERS = 160
"""Elements of float32 in each of two buffers."""


class Consumer:
    """A rank, of one generation."""

    def __init__(self, peer: int) -> None:
        self.peer, self.address = peer, f"at-{peer}"
        self.machine = Receiving(part_bytes=PART_BYTES)
        self.got: list[tuple[int, bytes]] = []
        self.first = 0
        """The first step that it lacks."""
        self.dead = self.frozen = False

    def take(self, frames: Any) -> None:
        head, *buffers = frames
        step = HEAD.unpack_from(head)[6]
        self.got.append((step, b"".join(bytes(each) for each in buffers)))
        for each in buffers:
            if isinstance(each, np.ndarray):
                each[:] = 255  # a consumer may write to what it gets


class World:
    """A producer, its consumers, and connections that keep their own order, and no other."""

    def __init__(self, seed: int, consumers: int = 4, chunks: int = 2) -> None:
        self.rng, self.chunks = random.Random(seed), chunks
        self.producer = Producing(7, 1, part_bytes=PART_BYTES)
        self.values: list[list[Item]] = []
        self.bytes_sent = 0
        self.spoil = 0.0
        """Share of the messages between consumers that change on their way."""
        self.now = 0.0
        self.lines: dict[tuple[str, str], deque[tuple[bytes, bytes, list[Any]]]] = {}
        self.consumers: list[Consumer] = []
        self._peers = 0
        for _ in range(consumers):
            self.consumers.append(self.begun())

    def begun(self) -> Consumer:
        self._peers += 1
        found = Consumer(self._peers)
        self.producer.opened(found.peer, found.address)
        return found

    def put(self, from_: str, to: str, message: Any) -> None:
        kind, told, frames = message
        copied = [bytes(each) for each in frames]
        if from_ == "p":
            self.bytes_sent += sum(map(len, copied))
        elif to != "p" and self.spoil and self.rng.random() < self.spoil:
            told, copied = self.spoilt(told, copied)
        self.lines.setdefault((from_, to), deque()).append((kind, told, copied))

    def spoilt(self, told: bytes, frames: list[bytes]) -> tuple[bytes, list[bytes]]:
        """Change a message: bits of its frames, their number, or what it says about itself."""
        how = self.rng.choice(["bits", "short", "nothing", "long", "number", "part", "last", "unreadable"])
        at = decode_at(told)
        if how in ("bits", "short") and frames and frames[0]:
            data = bytearray(frames[0])
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            frames = [bytes(data)] if how == "bits" else [frames[0][:-1]]
        elif how == "nothing":
            frames = []
        elif how == "long":
            frames = [*frames, b"more"]
        elif how in ("number", "part"):
            at = messages.msgspec.structs.replace(at, **{how: max(0, getattr(at, how) + self.rng.choice([-1, 1]))})
        elif how == "last":
            at = messages.msgspec.structs.replace(at, last=not at.last)
        return (b"\xc1" if how == "unreadable" else messages.encode(at)), frames

    def make(self) -> None:
        """The next value: little or everything has changed, or its size."""
        rng = np.random.default_rng(self.rng.getrandbits(32))
        made, kind = [], self.rng.choice(["little", "little", "little", "all", "size"])
        for chunk in range(self.chunks):
            old = self.values[-1][chunk].buffers if self.values else [np.zeros(NUMBERS, np.float32)] * 2
            new = [np.frombuffer(bytes(each), np.float32).copy() for each in old]
            if kind == "size":
                new = [rng.standard_normal(self.rng.randrange(1, NUMBERS)).astype(np.float32) for _ in range(2)]
            elif kind == "all":
                new = [rng.standard_normal(len(each)).astype(np.float32) for each in new]
            else:
                for each in new:
                    each[self.rng.randrange(len(each))] += 1
            buffers = [memoryview(each.tobytes()) for each in new]
            made.append(Item(object(), len(self.values), buffers, ["float32"] * 2))
        self.values.append(made)
        for consumer in self.consumers:
            self.send(consumer, len(self.values) - 1)

    def send(self, consumer: Consumer, step: int) -> None:
        for chunk, item in enumerate(self.values[step]):
            head = HEAD.pack(1, 2, 0, 3, 0, 0, step, chunk, 0, 2)
            for message in self.producer.send(consumer.peer, (3, chunk), item, head):
                self.put("p", consumer.address, message)
        end = HEAD.pack(1, 3, 1, 3, 0, 0, step, self.chunks, 0, 0)
        self.put("p", consumer.address, (PLAIN, b"", [end]))

    def kill(self, index: int) -> None:
        """A rank dies; its next generation asks for all that the dead one has not got."""
        old = self.consumers[index]
        old.dead = True
        for ends in [ends for ends in self.lines if old.address in ends]:
            del self.lines[ends]
        for each in self.consumers:
            if not each.dead:
                each.machine.lost(old.address)
                self.carry_out(each)
        self.producer.closed(old.peer)
        new = self.consumers[index] = self.begun()
        new.first = self.rng.randint(max(0, len(self.values) - 2), len(self.values))
        for step in range(new.first, len(self.values)):
            self.send(new, step)

    def step(self) -> bool:
        """Deliver one message. False if there is none that can be."""
        by_address = {each.address: each for each in self.consumers}
        ready = [
            ends
            for ends, line in self.lines.items()
            if line and not any(end in by_address and by_address[end].frozen for end in ends)
        ]
        if not ready:
            return False
        ends = self.rng.choice(ready)
        kind, told, frames = self.lines[ends].popleft()
        from_, to = ends
        if to == "p":
            (peer,) = [each.peer for each in self.consumers if each.address == from_]
            for message in self.producer.answered(peer, kind, decode_at(told)):
                self.put("p", from_, message)
            return True
        if to not in by_address:
            return True
        consumer = by_address[to]
        if from_ != "p" and not readable(told):  # as `DeltaTransport` does
            if kind != GIVE:
                consumer.machine.lost(from_)
                self.carry_out(consumer)
            return True
        machine, owner = consumer.machine, from_.encode()
        if kind == PLAIN:
            machine.plain(owner, frames)
        elif kind == VALUE:
            machine.value(owner, decode_value(told), frames[0], self.now)
        elif kind == PART:
            machine.part(decode_at(told), frames, self.now, "" if from_ == "p" else from_)
        elif kind == GIVE:
            machine.give(owner, decode_at(told))
        elif kind == LACKS:
            machine.lacks(decode_at(told))
        self.carry_out(consumer)
        return True

    def carry_out(self, consumer: Consumer) -> None:
        effects, consumer.machine.effects = consumer.machine.effects, []
        for effect in effects:
            if isinstance(effect, Deliver):
                consumer.take(effect.frames)
            elif isinstance(effect, Ask):
                if any(each.address == effect.address for each in self.consumers):
                    self.put(consumer.address, effect.address, effect.message)
                else:
                    consumer.machine.lost(effect.address)
                    self.carry_out(consumer)
            else:
                assert isinstance(effect, Reply)
                self.put(consumer.address, effect.to.decode(), effect.message)

    def tick(self) -> None:
        self.now += PATIENCE_S / 2
        for each in self.consumers:
            if not each.frozen:
                each.machine.tick(self.now)
                self.carry_out(each)

    def settle(self) -> None:
        """Deliver all, and let time pass, until nobody waits."""
        for each in self.consumers:
            each.frozen = False
        quiet = 0
        for _ in range(100_000):
            if self.step():
                quiet = 0
            else:
                quiet += 1
                self.tick()
            if quiet > 8:
                return
        raise AssertionError("it does not settle")

    def check(self) -> None:
        for each in self.consumers:
            wanted = [
                (step, b"".join(bytes(b) for b in item.buffers) if item is not None else b"")
                for step in range(each.first, len(self.values))
                for item in (*self.values[step], None)
            ]
            assert [step for step, _ in each.got] == [step for step, _ in wanted], "each value once, in order"
            assert each.got == wanted, "bit for bit"


def readable(told: bytes) -> bool:
    try:
        decode_at(told)
    except messages.msgspec.MsgspecError:
        return False
    return True


def played(seed: int, values: int = 8, *, kills: float = 0.0, freezes: float = 0.0, spoil: float = 0.0) -> World:
    world = World(seed, consumers=random.Random(seed).randint(1, 5))
    world.spoil = spoil
    for _ in range(values):
        world.make()
        for _ in range(world.rng.randint(0, 80)):
            world.step()
            if world.rng.random() < kills:
                world.kill(world.rng.randrange(len(world.consumers)))
            if world.rng.random() < freezes:
                each = world.rng.choice(world.consumers)
                each.frozen = not each.frozen
            if world.rng.random() < 0.05:
                world.tick()
    world.settle()
    world.check()
    return world


def some(seeds: range, first: int) -> list[Any]:
    return [seed if seed < first else pytest.param(seed, marks=pytest.mark.more) for seed in seeds]


@pytest.mark.parametrize("seed", some(range(40), 10))
def test_every_consumer_gets_every_value_in_order(seed: int) -> None:
    played(seed)


@pytest.mark.parametrize("seed", some(range(120), 30))
def test_dead_and_frozen_relays_are_passed_over(seed: int) -> None:
    played(seed, kills=0.02, freezes=0.03)


@pytest.mark.parametrize("seed", some(range(120), 30))
def test_relays_that_change_messages_are_passed_over(seed: int) -> None:
    played(seed, kills=0.01, spoil=0.1)


def test_a_value_that_changes_each_time_is_given_up_with_a_reason() -> None:
    world = World(1, consumers=1, chunks=1)
    real = world.put

    def put(from_: str, to: str, message: Any) -> None:
        kind, told, frames = message
        real(from_, to, (kind, told, [bytes(len(each)) for each in frames] if kind == PART else frames))

    world.put = put
    world.values.append([Item(object(), 0, [memoryview(np.random.default_rng(0).bytes(400))], ["float32"])])
    world.send(world.consumers[0], 0)
    with pytest.raises(Changed, match="a value of edge 3 from rank 0 came 3 times with other bits than it left"):
        world.settle()


def test_a_relay_without_memory_leaves_its_neighbours_to_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    def slices(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(receiving, "slices", slices)
    played(3)


def test_a_producer_without_memory_for_differences_sends_whole_values(monkeypatch: pytest.MonkeyPatch) -> None:
    real, chance = producing.difference, random.Random(0)

    def difference(*args: Any) -> Any:
        if chance.random() < 0.3:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(producing, "difference", difference)
    for seed in range(10):
        played(seed, kills=0.02)


def test_a_value_leaves_the_producer_once_however_many_consumers_take_it() -> None:
    world = World(1, consumers=5)
    rng = np.random.default_rng(0)
    world.values.append([Item(object(), 0, [memoryview(rng.bytes(4000))], ["float32"]) for _ in range(world.chunks)])
    for each in world.consumers:
        world.send(each, 0)
    world.settle()
    assert world.bytes_sent < 1.2 * 8000
    assert [len(each.got) for each in world.consumers] == [world.chunks + 1] * 5


def test_a_consumer_that_comes_late_gets_the_value_from_a_neighbour() -> None:
    world = World(1, consumers=3, chunks=1)
    item = Item(object(), 0, [memoryview(np.random.default_rng(0).bytes(4000))], ["float32"])
    world.values.append([item])
    for each in world.consumers:
        world.send(each, 0)
    world.settle()
    before = world.bytes_sent
    world.kill(1)
    world.consumers[1].first = 0
    world.consumers[1].got.clear()
    world.send(world.consumers[1], 0)
    world.settle()
    assert world.bytes_sent - before < 1000
    assert world.consumers[1].got[0] == (0, bytes(item.buffers[0]))


def a_lost_neighbour_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receiving, "lost", lambda self, address: None)
    patch.setattr(Receiving, "tick", lambda self, now: None)


def parts_are_taken_whatever_their_number(patch: pytest.MonkeyPatch) -> None:
    real = Receiving.part

    def part(self: Receiving, at: Any, frames: Any, now: float, source: str = "") -> None:
        _, coming = self._find(at)
        taken = at.part if coming is None or coming.taken < 0 else coming.taken
        real(self, messages.msgspec.structs.replace(at, part=taken), frames, now, coming.source if coming else "")

    patch.setattr(Receiving, "part", part)
    for module in (producing, receiving):  # the checksum would find it, and the value come again
        patch.setattr(module, "digest", lambda buffers: 0)


def a_relay_gives_the_memory_that_its_consumer_writes_to(patch: pytest.MonkeyPatch) -> None:
    real = Receiving._go_on

    def go_on(self: Receiving, held: Any, now: float) -> None:
        coming = held.coming[0]
        real(self, held, now)
        if coming.done and not coming.value.changes:
            held.buffers = coming.buffers

    patch.setattr(Receiving, "_go_on", go_on)


def values_are_delivered_as_they_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receiving, "plain", lambda self, owner, frames: self.effects.append(Deliver(frames)))


def differences_are_applied_to_any_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiving, "apply", lambda old, change, seed: None)


def kept_values_are_dropped_when_one_consumer_has_them(patch: pytest.MonkeyPatch) -> None:
    def tidy(stream: producing.Stream) -> None:
        low = max(stream.has.values())
        for number in [each for each in stream.kept if each <= low]:
            del stream.kept[number]

    patch.setattr(Producing, "_tidy", staticmethod(tidy))


MUTATIONS = [
    a_lost_neighbour_is_ignored,
    parts_are_taken_whatever_their_number,
    a_relay_gives_the_memory_that_its_consumer_writes_to,
    values_are_delivered_as_they_come,
    differences_are_applied_to_any_version,
    kept_values_are_dropped_when_one_consumer_has_them,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_the_scheduler_finds_a_broken_protocol(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    assert any(fails(seed) for seed in range(300))


def fails(seed: int) -> bool:
    try:
        played(seed, kills=0.02, freezes=0.03)
    except Exception:  # a broken protocol may raise anything
        return True
    return False


def test_values_without_gain_go_whole_after_three_attempts_and_one_attempt_follows_each_pause() -> None:
    producer, rng, attempts = Producing(7, 1), np.random.default_rng(0), []
    for step in range(130):
        item = Item(object(), step, [memoryview(rng.bytes(4096))], ["float32"])
        (kind, told, _), *_ = producer.send("c", "edge", item, b"")
        assert kind == VALUE
        if decode_value(told).changes:
            attempts.append(step)
        [*producer.answered("c", messages.HAS, messages.At(7, 0, step, False, 0, True))]
    pause = producing.PAUSE + 1
    assert attempts == [1, 2, 3, 3 + pause, 3 + 2 * pause]
