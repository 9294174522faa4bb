"""Values on their way when a snapshot was persisted: from the log to disk, and from there to any consumers."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from rolemesh.api.batch import Batch, Shard, Shards
from rolemesh.api.partition import Balanced, Broadcast, Partial, Sharded, Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import route
from rolemesh_checkpoint import disk, in_flight
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.log_kinds import RecordKind
from rolemesh_checkpoint.memory import MemorySnapshots
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import encode, flatten
from rolemesh_dataplane.shm import SlotPool, aligned_size
from rolemesh_durable.agent.persister import Persister
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.rank.origin_values import OriginError
from rolemesh_durable.rank.origin_files import OriginFiles
from rolemesh_runtime.values import combine, select

P = 9
INLINE = 4096


class Producer:
    """Logs what it sends as a rank does."""

    def __init__(self, shm, rank):
        self.shm, self.rank = shm, rank
        self.log = SendLog(shm, "data", rank)
        self.pool = SlotPool(shm, f"slot-data-{rank}-0")

    def send(self, edge, step, value, consumers, *, chunk=0, last=True, hold=1):
        header, buffers = encode(value)
        sizes = [len(buffer) for buffer in buffers]
        if sum(sizes) <= INLINE:
            body, slot = flatten(header, sizes, buffers), ""
        else:
            kept = self.pool.acquire(aligned_size(sizes))
            kept.write(buffers)
            body, slot = flatten(header, sizes, ()), kept.name
        return self.log.chunk(edge, step, chunk, last, hold, consumers, body, len(header), len(sizes), place=slot)

    def persist(self, run_dir, until, world_size=1):
        """A snapshot of step P, on disk: what its agent reports."""
        memory = MemorySnapshots(self.shm, "data", self.rank)
        memory.write(P, {"cursor": 1}, log=self.log.position, persist=True)
        persister = Persister(self.shm, run_dir, {"data": world_size})
        persister.start()
        try:
            persister.look("data", self.rank)
            return until(persister.results)[0]
        finally:
            persister.close()
            self.log.close()
            self.pool.close()


def written(run_dir, part):
    """The path of the one file of records in flight before its checkpoint is complete."""
    (name,) = [name for name in part.files if name.endswith(".edges")]
    return disk.step_folder(run_dir, part.step) / disk.attempt_file(name, part.attempt)


def read(path):
    return in_flight.read(path.parent, path.name)


def graph(src, dst, lag=1):
    ops = (OpCall(0, "data", "make", "data.make", src), OpCall(1, "train", "take", "train.take", None))
    edge = Edge(0, 0, 1, "batch", src, dst, lag=lag)
    return LogicalGraph("flow", ops, (edge,)), edge


def test_only_values_in_flight_are_stored_and_a_shared_payload_once(shm, run_dir, manifest, until):
    data = Producer(shm, 0)
    large = np.arange(100_000)
    data.send(0, P - 1, np.arange(3), (0,), hold=1)  # needed until P is committed: does not cross
    data.send(0, P - 1, np.arange(4), (0,), hold=2)
    first = data.send(0, P, large, (0,))
    record = SendLog.read(shm, "data", 0)[-1]
    data.log.chunk(1, P, 0, True, 3, (0, 1), record.body, record.hlen, record.count, payload=first, place=record.place)
    data.log.end(2, P, 1, 1, (0,))
    data.log.line(P, b"a line of metrics")
    data.log.decide("first/4", P - 1, 1, b"older items", persists=True)
    data.log.decide("first/4", P, 1, b"items", persists=True)
    data.log.decide("newest/3", P, 9, b"age")
    part = data.persist(run_dir, until)
    data_file = written(run_dir, part)
    assert data_file.stat().st_size < large.nbytes * 1.5
    found = read(data_file)
    assert [(r.edge, r.step, r.consumers, r.kind) for r in found if not r.scope] == [
        (0, P - 1, (0,), RecordKind.CHUNK),
        (0, P, (0,), RecordKind.CHUNK),
        (1, P, (0, 1), RecordKind.CHUNK),
        (2, P, (0,), RecordKind.END),
    ]
    assert [(r.scope, r.step, r.hold, r.body) for r in found if r.scope] == [("first/4", P, 1, b"items")]
    assert found[0].value().tolist() == [0, 1, 2, 3]
    assert np.array_equal(found[1].value(), large)
    assert np.array_equal(found[2].value(), large)
    assert disk.verify(manifest(P, {"data": 1}, [part])) == []


def test_a_value_sent_after_the_snapshot_does_not_belong_to_it(shm, run_dir, until):
    data = Producer(shm, 0)
    data.send(0, P, np.arange(3), (0,))
    memory = MemorySnapshots(shm, "data", 0)
    memory.write(P, None, log=data.log.position, persist=True)
    data.send(0, P + 1, np.arange(5), (0,))
    persister = Persister(shm, run_dir, {"data": 1})
    persister.start()
    persister.look("data", 0)
    (part,) = until(persister.results)
    persister.close()
    assert list(part.files) == ["data/rank-0-of-1.edges"]
    assert [r.step for r in read(written(run_dir, part))] == [P]
    data.log.close()


def test_a_torn_file_never_passes_for_a_whole_one(shm, run_dir, until):
    data = Producer(shm, 0)
    data.send(0, P, np.arange(3), (0,))
    data.send(0, P, np.arange(1000), (1,))
    path = written(run_dir, data.persist(run_dir, until))
    whole = path.read_bytes()
    assert len(read(path)) == 2
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with contextlib.suppress(SnapshotError):
            assert len(read(path)) < 2


def whole_values(src, m):
    """A value per producer rank, each of which is sent whole or in parts."""
    rows = [4, 3, 5][:m]
    starts = np.cumsum([0, *rows])
    match src:
        case Split():
            return [Batch({"x": np.arange(starts[r], starts[r + 1])}) for r in range(m)]
        case Broadcast():
            return [Batch({"x": np.arange(12)}) for _ in range(m)]
        case Sharded():
            whole = np.arange(14.0).reshape(7, 2)
            each = -(-7 // m)
            return [Shards(w=Shard(whole[r * each : (r + 1) * each], (7, 2), (min(7, r * each), 0))) for r in range(m)]
        case Partial():
            return [np.full(6, r + 1.0) for r in range(m)]


def received(src, m, dst, n):
    """Return the values that `n` consumers get from `m` producers without a snapshot."""
    way = route(src, m, dst, n)
    values = whole_values(src, m)
    return [
        combine([select(values[p], way.sends_to(p, consumer)) for p in way.sources(consumer)], way.combine)
        for consumer in range(n)
    ]


def joined(values):
    """All consumers' values as one, so that two numbers of consumers can be compared."""
    if isinstance(values[0], Batch):
        return np.concatenate([value["x"] for value in values]).tolist()
    if isinstance(values[0], Shards):
        whole = np.full(values[0]["w"].shape, np.nan)
        for shard in (value["w"] for value in values):
            whole[tuple(slice(at, at + n) for at, n in zip(shard.offsets, shard.data.shape, strict=True))] = shard.data
        return whole.tolist()
    if any(isinstance(held, list) for held in values[0].values()):
        return [{name: [(s.offsets, s.data.tolist()) for s in held] for name, held in values[0].items()}]
    return [{name: array.tolist() for name, array in value.items()} for value in values][:1]


@pytest.fixture
def persisted(shm, run_dir, manifest, until):
    def make(src, m, dst, n):
        way = route(src, m, dst, n)
        parts = []
        for rank, value in enumerate(whole_values(src, m)):
            producer = Producer(shm, rank)
            for send in way.sends(rank):
                producer.send(0, P, select(value, send.selection), send.consumers, hold=1)
            parts.append(producer.persist(run_dir, until, m))
        return manifest(P, {"data": m, "train": n}, parts)

    return make


PAIRS = [
    (Split(), Split()),
    (Split(), Broadcast()),
    (Broadcast(), Split()),
    (Sharded(), Sharded()),
    (Sharded(), Broadcast()),
    (Sharded(), Sharded(dim=None)),
    (Sharded(), Sharded(dim=1)),
    (Broadcast(), Broadcast()),
    (Split(), Balanced()),
    (Broadcast(), Balanced()),
]


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
@pytest.mark.parametrize(("m", "old", "new"), [(2, 2, 2), (2, 3, 3), (1, 2, 1), (3, 1, 2), (2, 2, 4)])
def test_any_number_of_consumers_gets_the_values_in_flight(persisted, src, dst, m, old, new):
    folder = persisted(src, m, dst, old)
    flow, edge = graph(src, dst)
    found = []
    for rank in range(new):
        values = OriginFiles(folder, flow, rank, new).values(edge)
        assert list(values) == [P]
        found.append(values[P])
    wanted = received(src, m, dst, old)
    if delivery_of(edge).held == Broadcast():
        assert len({str(joined([value])) for value in found}) == 1
        assert joined(found[:1]) == joined(wanted[:1])
    else:
        assert joined(found) == joined(wanted)
    if old == new:
        assert all(str(a) == str(b) for a, b in zip(found, wanted, strict=True))


def test_addends_go_to_the_same_number_of_ranks_only(persisted):
    folder = persisted(Partial("sum"), 2, Partial("sum"), 2)
    flow, edge = graph(Partial("sum"), Partial("sum"))
    assert OriginFiles(folder, flow, 1, 2).values(edge)[P].tolist() == [2.0] * 6
    with pytest.raises(OriginError, match=r"'batch' was on its way to 2 ranks, and cannot be cut for 1"):
        OriginFiles(folder, flow, 0, 1).values(edge)


def test_chunks_are_joined_in_their_order(shm, run_dir, manifest, until):
    data = Producer(shm, 0)
    for chunk in (1, 0, 2):
        data.send(0, P, Batch({"x": np.full(2, chunk)}), (0,), chunk=chunk, last=chunk == 2)
    folder = manifest(P, {"data": 1, "train": 1}, [data.persist(run_dir, until)])
    flow, edge = graph(Split(), Split())
    assert OriginFiles(folder, flow, 0, 1).values(edge)[P]["x"].tolist() == [0, 0, 1, 1, 2, 2]
