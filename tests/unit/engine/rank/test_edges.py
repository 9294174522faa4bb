"""Values arrive whole, once, in order, whatever the partitions, world sizes, lags and chunks."""

from multiprocessing import get_context

import numpy as np
import pytest
from tests.waiting import HANG_S

from rolemesh.api.batch import Batch, Shard, Shards
from rolemesh.api.partition import Broadcast, Partial, Sharded, Split

LARGE = 200_000


def source(role, make):
    """A producer of `make(ctx)` at each step."""
    return lambda: role(make=lambda self: make(self.ctx))


def sink(role, keep=lambda x: x):
    """A consumer that keeps (step, copy of what it got)."""
    return lambda: role(take=lambda self, x: self.seen.append((self.ctx.step, keep(x))))


@pytest.mark.parametrize("rows", [4, LARGE])
def test_a_chain_hands_every_value_on_in_order(fleet, flow, role, rows):
    graph, edge = flow
    chain = graph(
        ("a", "make", Split()), ("b", "double", Split()), ("c", "take", None), edges=[edge(0, 0, 1), edge(1, 1, 2)]
    )
    out = fleet.run(
        chain,
        {
            "a": (source(role, lambda ctx: np.full(rows, ctx.step, np.int32)), 1),
            "b": (lambda: role(double=lambda self, x: x * 2), 1),
            "c": (sink(role, lambda x: (len(x), int(x.min()), int(x.max()))), 1),
        },
        steps=20,
    )
    assert out["c", 0].seen == [(step, (rows, 2 * step, 2 * step)) for step in range(20)]
    assert [o.finished for o in out.values()] == [19, 19, 19]


@pytest.mark.parametrize(("m", "n"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_rows_are_split_over_any_world_sizes(fleet, flow, role, m, n):
    graph, edge = flow

    def make(ctx):
        rows = np.arange(ctx.rank * 10, ctx.rank * 10 + 10) + 1000 * ctx.step
        return Batch({"row": rows, "name": [str(row) for row in rows]})

    def pairs(batch):
        return list(zip(batch["row"].tolist(), batch["name"], strict=True))

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)]),
        {"a": (source(role, make), m), "b": (sink(role, pairs), n)},
        steps=3,
    )
    for step in range(3):
        got = [pair for rank in range(n) for pair in out["b", rank].seen[step][1]]
        assert got == [(r + 1000 * step, str(r + 1000 * step)) for r in range(m * 10)]


def test_broadcast_reaches_all_and_partial_is_summed(fleet, flow, role):
    graph, edge = flow
    flow_graph = graph(
        ("a", "make", Partial("sum")),
        ("b", "take", None),
        edges=[edge(0, 0, 1, src_partition=Partial("sum"), dst_partition=Broadcast())],
    )
    out = fleet.run(
        flow_graph,
        {"a": (source(role, lambda ctx: np.array([ctx.rank + 1.0])), 3), "b": (sink(role, lambda x: x.tolist()), 2)},
        steps=2,
    )
    assert out["b", 0].seen == out["b", 1].seen == [(0, [6.0]), (1, [6.0])]


def test_shards_are_laid_out_again_and_assembled(fleet, flow, role):
    graph, edge = flow
    whole = np.arange(60_000, dtype=np.float32).reshape(600, 100)

    def make(ctx):
        return Shards(w=Shard(whole[ctx.rank * 300 : ctx.rank * 300 + 300] + ctx.step, (600, 100), (ctx.rank * 300, 0)))

    def keep(value):
        block = value["w"]
        if isinstance(block, Shard):
            return block.offsets, float(block.data[0, 0]), block.data.shape
        return block.shape, bool((block == whole + block[0, 0]).all())

    out = fleet.run(
        graph(
            ("a", "make", Sharded()),
            ("b", "take", None),
            ("c", "take", None),
            edges=[
                edge(0, 0, 1, src_partition=Sharded(), dst_partition=Sharded()),
                edge(1, 0, 2, src_partition=Sharded(), dst_partition=Broadcast()),
            ],
        ),
        {"a": (source(role, make), 2), "b": (sink(role, keep), 3), "c": (sink(role, keep), 1)},
        steps=2,
    )
    assert [out["b", r].seen[1][1] for r in range(3)] == [
        ((200 * r, 0), 200 * r * 100 + 1.0, (200, 100)) for r in range(3)
    ]
    assert out["c", 0].seen == [(0, ((600, 100), True)), (1, ((600, 100), True))]


def test_a_lagged_value_is_taken_later_and_first_calls_are_skipped(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, lag=2)]),
        {"a": (source(role, lambda ctx: [ctx.step]), 1), "b": (sink(role), 1)},
        steps=6,
    )
    assert out["b", 0].seen == [(step, [step - 2]) for step in range(2, 6)]


def test_a_role_feeds_itself_along_a_lagged_edge(fleet, flow, role):
    graph, edge = flow
    flow_graph = graph(("a", "make", Split()), ("a", "take", None), edges=[edge(0, 0, 1, lag=1)])
    roles = {
        "a": (
            lambda: role(
                make=lambda self: np.full(LARGE, self.ctx.step),
                take=lambda self, x: self.seen.append((self.ctx.step, int(x[-1]))),
            ),
            2,
        )
    }
    out = fleet.run(flow_graph, roles, steps=5)
    assert out["a", 0].seen == out["a", 1].seen == [(step, step - 1) for step in range(1, 5)]


def test_values_that_nobody_takes_are_not_sent(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(
            ("a", "make", Split()),
            ("b", "take", None, {"every": 3}),
            ("c", "take", None),
            edges=[edge(0, 0, 1, credits=1), edge(1, 0, 2)],
        ),
        {"a": (source(role, lambda ctx: [ctx.step]), 1), "b": (sink(role), 1), "c": (sink(role), 1)},
        steps=7,
    )
    assert out["b", 0].seen == [(0, [0]), (3, [3]), (6, [6])]
    assert [step for step, _ in out["c", 0].seen] == list(range(7))


def chunked(role, chunks):
    def make(self):
        for part in chunks:
            yield part + 10 * self.ctx.step

    return lambda: role(make=make)


def test_chunks_are_joined_for_a_consumer_that_does_not_stream(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)]),
        {"a": (chunked(role, [np.arange(2), np.arange(2, 6)]), 1), "b": (sink(role, lambda x: x.tolist()), 2)},
        steps=2,
    )
    assert [out["b", r].seen[0][1] for r in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
    assert [out["b", r].seen[1][1] for r in (0, 1)] == [[10, 11, 12], [13, 14, 15]]


def test_a_streaming_consumer_gets_chunks_in_the_order_of_ranks(fleet, flow, role):
    graph, edge = flow

    def make(self):
        for number in range(2 + self.ctx.rank):
            yield [(self.ctx.rank, number)]

    def take(self, x):
        self.seen.append([item for chunk in x for item in chunk])

    flow_graph = graph(
        ("a", "make", Split()),
        ("b", "take", None, {"streaming": True}),
        edges=[edge(0, 0, 1, dst_partition=Broadcast())],
    )
    out = fleet.run(flow_graph, {"a": (lambda: role(make=make), 2), "b": (lambda: role(take=take), 1)}, steps=2)
    assert out["b", 0].seen == [[(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]] * 2


def test_by_arrival_a_slow_producer_holds_back_no_other(fleet, flow, role):
    graph, edge = flow
    got_all = get_context("fork").Event()

    def make(self):
        for number in range(3):
            if self.ctx.rank == 0:
                self.seen.append(got_all.wait(HANG_S))
            yield [(self.ctx.rank, number)]

    def take(self, x):
        for chunk in x:
            self.seen.append(chunk[0])
            if chunk[0] == (1, 2):
                got_all.set()

    flow_graph = graph(
        ("a", "make", Split()),
        ("b", "take", None, {"streaming": "arrival"}),
        edges=[edge(0, 0, 1, dst_partition=Broadcast())],
    )
    out = fleet.run(flow_graph, {"a": (lambda: role(make=make), 2), "b": (lambda: role(take=take), 1)}, steps=1)
    assert out["a", 0].seen == [True] * 3
    assert out["b", 0].seen == [(1, 0), (1, 1), (1, 2), (0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("rows", [2, LARGE])
def test_a_streaming_consumer_starts_while_the_producer_still_runs(fleet, flow, role, rows):
    graph, edge = flow
    got_first = get_context("fork").Event()

    def make(self):
        yield np.zeros(rows)
        self.seen.append(got_first.wait(HANG_S))
        yield np.ones(rows)

    def take(self, x):
        for chunk in x:
            got_first.set()
            self.seen.append(float(chunk[0]))

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None, {"streaming": True}), edges=[edge(0, 0, 1)]),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=take), 1)},
        steps=1,
    )
    assert out["a", 0].seen == [True]
    assert out["b", 0].seen == [0.0, 1.0]


def test_a_streaming_consumer_may_leave_chunks_unread(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None, {"streaming": True}), edges=[edge(0, 0, 1, credits=1)]),
        {
            "a": (chunked(role, [np.arange(2)] * 5), 1),
            "b": (lambda: role(take=lambda self, x: self.seen.append(next(x).tolist())), 1),
        },
        steps=3,
    )
    assert out["b", 0].seen == [[0, 1], [10, 11], [20, 21]]


def test_arrived_values_are_read_only(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)]),
        {"a": (source(role, lambda ctx: np.zeros(LARGE)), 1), "b": (sink(role, lambda x: x.flags.writeable), 1)},
        steps=1,
    )
    assert out["b", 0].seen == [(0, False)]


def test_an_input_handed_on_is_copied_before_it_is_released(fleet, flow, role):
    graph, edge = flow
    chain = graph(
        ("a", "make", Split()),
        ("b", "tag", Split()),
        ("c", "take", None),
        edges=[edge(0, 0, 1, credits=1), edge(1, 1, 2, credits=4)],
    )
    out = fleet.run(
        chain,
        {
            "a": (source(role, lambda ctx: Batch({"x": np.full(LARGE, ctx.step)})), 1),
            "b": (lambda: role(tag=lambda self, x: x | {"y": np.zeros(LARGE)}), 1),
            "c": (sink(role, lambda b: (int(b["x"][0]), int(b["x"][-1]))), 1),
        },
        steps=12,
    )
    assert out["c", 0].seen == [(step, (step, step)) for step in range(12)]
