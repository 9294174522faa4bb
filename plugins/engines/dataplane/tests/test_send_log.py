"""The send log outlives its rank. Readers ignore a torn tail and know orphan messages; old segments go in time."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.batch import Batch
from rolemesh_checkpoint import log_record, send_log
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import decode, unflatten
from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.shm import NoSharedMemory, SlotPool, new_file
from rolemesh_dataplane.slot_reader import SlotReader


def send(log, pool, step, value, *, edge=0, hold=0, consumers=(0,), chunk=0, last=True):
    payload = Payload(value, pool, 1000)
    return log.chunk(
        edge, step, chunk, last, hold, consumers, payload.body, payload.hlen, len(payload.sizes), place=payload.place
    )


@pytest.fixture
def pool(shm):
    return SlotPool(shm, "slot-a-0-0")


@pytest.mark.parametrize("rows", [3, 5000])
def test_sent_values_can_be_read_again(shm, pool, rows):
    log = SendLog(shm, "a", 0)
    value = {"x": np.arange(rows), "name": ["é"] * 3}
    assert send(log, pool, 4, value, edge=7, hold=2, consumers=(0, 3)) == 0
    log.end(7, 4, 1, 2, (0, 3))
    log.line(4, b"a line")
    log.line(4, b"half a line", partial=True)
    first, *others = SendLog.read(shm, "a", 0)
    assert (first.edge, first.step, first.hold, first.consumers, first.last) == (7, 4, 2, (0, 3), True)
    assert bool(first.place) == (rows > 1000)
    header, buffers = first.load(shm)
    again = decode(header, buffers)
    assert np.array_equal(again["x"], value["x"])
    assert again["name"] == value["name"]
    assert [(r.kind, r.body) for r in others] == [
        (RecordKind.END, b""),
        (RecordKind.LINE, b"a line"),
        (RecordKind.PARTIAL, b"half a line"),
    ]
    assert log.position == 4
    assert [r.kind for r in SendLog.read(shm, "a", 0, 2)] == [RecordKind.CHUNK, RecordKind.END]
    log.close()


def test_the_log_has_a_forwarded_value_after_its_writer_ended(shm, pool):
    forwarding, reader = SlotPool(shm, "slot-b-0-0"), SlotReader(shm)
    sent = Payload(Batch({"x": np.arange(1 << 17), "y": np.arange(1 << 17) + 1}), pool, 1000)
    header, sizes, _ = unflatten(sent.body, 0, sent.hlen, len(sent.sizes))
    value = decode(header, reader.read(sent.place, sizes)) | {"reward": np.arange(1 << 17) + 2}
    again = Payload(value, forwarding, 1000, reader)
    log = SendLog(shm, "b", 0)
    log.chunk(0, 0, 0, True, 1, (0,), again.body, again.hlen, len(again.sizes), place=again.place)
    pool.close()
    (record,) = SendLog.read(shm, "b", 0)
    assert decode(*record.load(shm)) == value
    assert record.slots == tuple(slot.name for slot in again.slots)
    assert len(record.slots) == 2, "one is linked"
    after = SlotPool(shm, "slot-b-0-1")
    assert all(after.adopt(name) for name in record.slots)
    assert after.used_bytes == sum(slot.capacity for slot in again.slots)


class Torn:
    """Memory in which a write takes eight bytes at a time. After each of them it calls `look`."""

    def __init__(self, memory, look):
        self.memory, self.look = memory, look

    def __len__(self):
        return len(self.memory)

    def __setitem__(self, at, data):
        start, stop, _ = at.indices(len(self.memory))
        for begin in range(start, stop, 8):
            end = min(begin + 8, stop)
            self.memory[begin:end] = data[begin - start : end - start]
            self.look()


def test_a_rank_that_is_killed_while_it_begins_a_segment_hides_no_record(shm):
    log = SendLog(shm, "a", 0)
    log.line(7, b"a line")
    log.close()
    seen = []

    def look():
        seen.append([record.body for record in SendLog.read(shm, "a", 0)])

    again = SendLog(shm, "a", 0, generation=1, resume=7, persist=lambda make: Torn(make(), look))
    assert seen == [[b"a line"]] * 6
    again.close()


def test_a_torn_record_and_the_records_after_it_do_not_count(shm, pool):
    log = SendLog(shm, "a", 0)
    for step in range(3):
        send(log, pool, step, [step])
    log.close()
    (path,) = shm.glob("log-a-0-*")
    whole = path.read_bytes()
    second = SendLog.read(shm, "a", 0)[1]
    at = whole.index(second.body)
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    assert [r.step for r in SendLog.read(shm, "a", 0)] == [0]
    successor = SendLog(shm, "a", 0, generation=1, resume=0)
    assert successor.position == 1
    send(successor, pool, 1, [1])
    assert [r.step for r in SendLog.read(shm, "a", 0)] == [0, 1]
    successor.close()


@pytest.mark.parametrize("size", [0, 7, 40])
def test_a_segment_without_a_beginning_is_nothing(shm, pool, size):
    (shm / "log-a-0-0").write_bytes(bytes(size))
    log = SendLog(shm, "a", 0, generation=1)
    send(log, pool, 0, [0])
    assert [r.step for r in SendLog.read(shm, "a", 0)] == [0]
    log.close()


def test_a_record_after_the_step_to_which_a_successor_was_restored_is_an_orphan(shm, pool):
    first = SendLog(shm, "a", 0)
    for step in range(6):
        send(first, pool, step, [step])
    first.close()
    second = SendLog(shm, "a", 0, generation=1, resume=2)
    for step in (3, 4):
        send(second, pool, step, [step])
    second.close()
    third = SendLog(shm, "a", 0, generation=2, resume=3)
    found = [(r.generation, r.step) for r in third.found if not third.is_orphan(r)]
    assert found == [(0, 0), (0, 1), (0, 2), (1, 3)]
    assert [(r.generation, r.step) for r in SendLog.read(shm, "a", 0)] == found
    third.close()


def test_segments_go_when_nothing_in_them_is_needed(shm, pool):
    log = SendLog(shm, "a", 0)
    big = b"x" * 900
    for step in range(4000):
        send(log, pool, step, big, hold=1)
        if step == 10:
            log.line(10, b"line")

    def files():
        return sorted(int(path.name.rpartition("-")[2]) for path in shm.glob("log-a-0-*"))

    everything = files()
    assert len(everything) > 3
    assert log.awaits_commit(4100)
    log.trim(4100, 9)
    assert files() == [0, everything[-1]], "the line of step 10 is not durable"
    log.trim(4100, 10, pins=[5])
    assert files() == [0, everything[-1]], "what crosses step 5 is being persisted"
    assert not log.awaits_commit(4100), "a rank that waits for that commit waits for ever"
    log.trim(4100, 10)
    assert files() == everything[-1:], "the one that is written"
    log.close()


def test_a_record_larger_than_a_segment_gets_one_of_its_own(shm, pool):
    log = SendLog(shm, "a", 0)
    send(log, pool, 0, ["y" * (3 << 20)])
    send(log, pool, 1, [1])
    assert [(r.step, r.hlen > 3 << 20) for r in SendLog.read(shm, "a", 0)] == [(0, True), (1, False)]
    log.close()


def test_segments_stay_small_where_memory_is_short(shm, pool, monkeypatch):
    def short(path, size, *args, **kwargs):
        if size > 100_000:
            raise NoSharedMemory("no room")
        return new_file(path, size, *args, **kwargs)

    monkeypatch.setattr(send_log, "new_file", short)
    log = SendLog(shm, "a", 0)
    for step in range(1000):
        send(log, pool, step, b"x" * 900)
    assert {path.stat().st_size for path in shm.glob("log-a-0-*")} == {1 << 16}
    assert [record.step for record in SendLog.read(shm, "a", 0)] == list(range(1000))
    with pytest.raises(NoSharedMemory):
        send(log, pool, 1000, ["y" * 200_000])
    log.close()


def made(log, pool, step, *, whole):
    first = log.position
    send(log, pool, step, [step], edge=1)
    send(log, pool, step, [step], edge=2)
    if whole:
        log.whole(0, step, first, 0)


def steps_of(log):
    return {record.step for record in log.found if log.is_whole(record) and not log.is_orphan(record)}


def test_complete_values_are_no_orphans_after_any_number_of_restarts(shm, pool):
    log = SendLog(shm, "a", 0)
    for step in range(4):
        made(log, pool, step, whole=step < 3)
    log.line(2, b"a line")
    second = SendLog(shm, "a", 0, generation=1, resume=0)
    assert steps_of(second) == {0, 1, 2}
    assert [second.is_orphan(r) for r in second.found if r.step == 3] == [True, True]
    assert [second.is_orphan(r) for r in second.found if r.kind == RecordKind.LINE] == [True]
    third = SendLog(shm, "a", 0, generation=2, resume=1)
    assert steps_of(third) == {0, 1, 2}
    assert {r.step for r in SendLog.read(shm, "a", 0) if r.kind == RecordKind.CHUNK} == {0, 1, 2}


def test_the_newest_of_two_complete_versions_counts(shm, pool):
    made(SendLog(shm, "a", 0), pool, 1, whole=True)
    again = SendLog(shm, "a", 0, generation=1, resume=0)
    first = again.position
    send(again, pool, 1, ["new"], edge=1)
    assert {r.generation for r in SendLog.read(shm, "a", 0) if r.kind == RecordKind.CHUNK and r.edge == 2} == {0}
    send(again, pool, 1, ["new"], edge=2)
    again.whole(0, 1, first, 0, b"items")
    assert {r.generation for r in SendLog.read(shm, "a", 0) if r.kind == RecordKind.CHUNK} == {1}
    third = SendLog(shm, "a", 0, generation=2, resume=0)
    assert {r.generation for r in third.found if third.is_whole(r)} == {1}
    assert [r.body for r in third.found if r.kind == RecordKind.WHOLE and not third.is_orphan(r)] == [b"items"]


def test_complete_calls_are_void_after_the_whole_job_has_gone_back(shm, pool):
    log = SendLog(shm, "a", 0)
    for step in range(3):
        made(log, pool, step, whole=True)
    back = SendLog(shm, "a", 0, generation=1, resume=0, timeline=1)
    assert steps_of(back) == set()
    made(back, pool, 1, whole=True)
    assert steps_of(SendLog(shm, "a", 0, generation=2, resume=0, timeline=1)) == {1}
    assert {r.step for r in SendLog.read(shm, "a", 0) if r.kind == RecordKind.CHUNK and r.generation == 0} == {0}


def test_a_log_is_sure_if_every_generation_that_may_have_shown_something_has_written_to_it(shm, pool):
    assert SendLog(shm, "a", 0).sure
    assert SendLog(shm, "a", 0, generation=1, resume=0).sure
    assert not SendLog(shm, "a", 0, generation=3, resume=0).sure  # the second one was elsewhere
    copied = SendLog(shm, "a", 0, generation=4, resume=0, copied=True)
    assert not copied.sure
    again = SendLog(shm, "a", 0, generation=5, resume=0)
    assert not again.sure  # the fourth has shown nothing, and has not asked either
    made(again, pool, 1, whole=True)
    assert again.sure
    assert SendLog(shm, "a", 0, generation=6, resume=0).sure


def test_records_of_a_copied_log_beyond_its_snapshot_are_void(shm, pool):
    log = SendLog(shm, "a", 0)
    for step in range(3):
        made(log, pool, step, whole=True)
    assert steps_of(SendLog(shm, "a", 0, generation=1, resume=1, copied=True)) == {0, 1}
    assert steps_of(SendLog(shm, "a", 0, generation=2, resume=1)) == {0, 1}


def test_a_choice_before_the_whole_job_went_back_is_not_repeated(shm):
    log = SendLog(shm, "a", 0)
    log.decide("newest/3", 5, 1, b"1")
    log.decide("calls/asked", 5, 1, b"key")
    log.decide("newest/3", 6, 1, b"0")
    log.close()
    again = SendLog(shm, "a", 0, generation=1, resume=2)
    assert [(record.step, record.body) for record in again.decisions("newest/3")] == [(5, b"1"), (6, b"0")]
    assert [record.body for record in again.decisions("calls/asked")] == [b"key"]
    assert again.decisions("newest/4") == []
    again.close()
    back = SendLog(shm, "a", 0, generation=2, resume=2, timeline=1)
    back.decide("newest/3", 3, 1, b"0")
    back.close()
    restarted = SendLog(shm, "a", 0, generation=3, resume=2, timeline=1)
    assert [record.step for record in restarted.decisions("newest/3")] == [3]
    assert restarted.decisions("calls/asked") == []
    restarted.close()


def test_a_decision_from_a_snapshot_file_is_not_taken_for_one_that_the_rank_made(shm):
    log = SendLog(shm, "a", 0)
    log.decide("calls/answered", 5, 1, b"an answer that a stranger wrote into the file", persists=True)
    log.decide("calls/answered", 5, 1, b"the rank's own")
    log.close()
    again = SendLog(shm, "a", 0, generation=1, resume=2)
    assert [record.body for record in again.decisions("calls/answered")] == [b"the rank's own"]
    again.close()


@given(st.data())
def test_every_record_is_read_as_it_was_written(data):
    ranks = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
    position, step = data.draw(st.integers(0, 2**63)), data.draw(st.integers(-1, 2**62))
    hold, generation = data.draw(st.integers(0, 2**33)), data.draw(st.integers(0, 9))
    edge, chunk = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(0, 2**32 - 1))
    consumers, body = data.draw(ranks), data.draw(st.binary(max_size=40))
    packed = struct.pack(f"<{len(consumers)}I", *consumers)
    common = {"position": position, "generation": generation, "step": step, "hold": min(hold, log_record.MAX_HOLD)}
    sent = {"edge": edge, "chunk": chunk, "consumers": consumers}
    match kind := data.draw(st.sampled_from(RecordKind)):
        case RecordKind.CHUNK:
            rest = {"last": data.draw(st.booleans()), "payload": data.draw(st.integers(0, 2**62))}
            rest |= {"hlen": data.draw(st.integers(0, 2**32 - 1)), "count": data.draw(st.integers(0, 2**32 - 1))}
            place = data.draw(st.text(max_size=20))
            numbers = edge, chunk, rest["payload"], rest["hlen"], rest["count"], len(place.encode())
            head = log_record.chunk_head(position, step, common["hold"], kind, rest["last"], len(consumers), *numbers)
            encoded = head + packed + place.encode() + body
            fields = sent | rest | {"place": place, "body": body}
        case RecordKind.END:
            encoded = log_record.end(position, step, hold, edge, chunk, consumers) + packed
            fields = sent | {"last": True}
        case RecordKind.LINE | RecordKind.PARTIAL:
            common["hold"] = 1
            encoded = log_record.lines(position, step, 1, body, partial=kind == RecordKind.PARTIAL)
            fields = {"body": body}
        case RecordKind.WHOLE:
            encoded = log_record.whole(position, step, hold, edge, chunk, body)
            fields = {"call": edge, "made": chunk, "body": body}
        case RecordKind.DECISION:
            scope, persists = data.draw(st.text(max_size=60)), data.draw(st.booleans())
            encoded = log_record.decision(position, step, hold, scope, body, persists=persists)
            fields = {"scope": scope, "persists": persists, "body": body}
    assert log_record.head_of(encoded) == (position, step, common["hold"])
    assert log_record.parse(encoded, generation) == log_record.LogRecord(kind, **common, **fields)


def test_a_log_of_an_earlier_format_has_no_records(shm):
    log = SendLog(shm, "a", 0)
    log.decide("newest/3", 5, 1, b"1")
    log.close()
    (path,) = shm.glob("log-a-0-*")
    path.write_bytes(path.read_bytes().replace(b"rmlog004", b"rmlog003", 1))
    assert SendLog.read(shm, "a", 0) == []
