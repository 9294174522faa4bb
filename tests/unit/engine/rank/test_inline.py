"""The inline engine gives what processes give, in one process."""

from itertools import chain

import numpy as np
import pytest

from rolemesh.api.partition import Balanced, Broadcast, Split
from rolemesh.api.port import LocalPort
from rolemesh.api.rank_ref import RankRef
from rolemesh.api.workload import RankContext
from rolemesh_durable.protocol.metrics.item_reports import settled
from rolemesh_inline.calls import ENGINE
from rolemesh_inline.steps import InlineSteps
from rolemesh_runtime.metrics import joined
from rolemesh_runtime.operator_failure import OperatorFailed, user_traceback


def inline(flow_graph, roles, steps, every=1):
    """Run `roles` as `fleet.run` would; return what each has seen, and the lines."""
    workloads, contexts, ports, lines = {}, {}, {}, []
    for name, (factory, size) in roles.items():
        for rank in range(size):
            place = {"role": name, "rank": rank, "world_size": size}
            port = ports[RankRef(name, rank)] = LocalPort()
            contexts[RankRef(name, rank)] = RankContext(port=port, **place)
            workloads[RankRef(name, rank)] = factory()
            workloads[RankRef(name, rank)].setup(contexts[RankRef(name, rank)])
    engine = InlineSteps(
        flow_graph,
        workloads,
        contexts,
        ports,
        steps=steps,
        metrics_every=every,
        report=lambda parts: lines.extend(chain(*parts.values())),
    )
    assert engine.run() == steps - 1
    return {key: workload.seen for key, workload in workloads.items()}, lines


def example(flow, role):
    """Every kind of edge: splits, lag, every, chunks, a stream, feedback to the first role."""
    graph, edge = flow

    def make(self, w=None):
        self.seen.append(None if w is None else w.tolist())
        for number in range(3):
            yield np.arange(4) + 100 * number + 1000 * self.ctx.step + 10 * self.ctx.rank

    def work(self, x):
        self.ctx.count(rows=len(x))
        return x * 2

    def take(self, x):
        parts = [part.tolist() for part in x]
        self.seen.append((self.ctx.step, parts))
        return np.array([float(len(parts)), self.ctx.step])

    flow_graph = graph(
        ("a", "make", Split()),
        ("b", "work", Split()),
        ("c", "take", Broadcast(), {"streaming": True}),
        ("d", "look", None, {"every": 2, "at": 1}),
        ("d", "late", None),
        edges=[
            edge(0, 0, 1),
            edge(1, 0, 2, dst_partition=Broadcast()),
            edge(2, 1, 3, dst_partition=Broadcast()),
            edge(3, 2, 4, src_partition=Broadcast(), dst_partition=Split(), lag=1),
        ],
    )
    see = lambda self, x: self.seen.append((self.ctx.step, x.tolist()))  # noqa: E731
    return flow_graph, {
        "a": (lambda: role(make=make), 2),
        "b": (lambda: role(work=work), 3),
        "c": (lambda: role(take=take), 1),
        "d": (lambda: role(look=see, late=see), 2),
    }


def test_one_process_sees_the_same_as_many(fleet, flow, role):
    flow_graph, roles = example(flow, role)
    out = fleet.run(flow_graph, roles, steps=5)
    seen, lines = inline(flow_graph, roles, 5)
    assert seen == {key: outcome.seen for key, outcome in out.items()}
    for name in roles:
        theirs = [line for key, o in out.items() if key[0] == name for line in o.lines]
        ours = [line for line in lines if line.role == name]
        assert sorted((r.step, r.steps, r.sums.get("b.work", {}).get("rows", 0)) for r in ours) == sorted(
            (r.step, r.steps, r.sums.get("b.work", {}).get("rows", 0)) for r in theirs
        )


def test_rows_that_fail_are_left_out_and_counted_alike(fleet, flow, role):
    graph, edge = flow
    how = Balanced(2, on_error="drop")

    def make(self):
        return np.arange(12) + 100 * self.ctx.step

    def work(self, x):
        self.ctx.count(rows=len(x))
        if x[0] % 3 == 1:
            raise ValueError("bad row")
        return x * 2

    ends = [edge(0, 0, 1, dst_partition=how), edge(1, 1, 2, src_partition=how, dst_partition=Split())]
    flow_graph = graph(("a", "make", Split()), ("b", "work", how), ("c", "look", None), edges=ends)
    see = lambda self, x: self.seen.append((self.ctx.step, x.tolist()))  # noqa: E731
    roles = {"a": (lambda: role(make=make), 1), "b": (lambda: role(work=work), 3), "c": (lambda: role(look=see), 2)}
    out = fleet.run(flow_graph, roles, steps=6)
    seen, lines = inline(flow_graph, roles, 6)
    assert seen == {key: outcome.seen for key, outcome in out.items()}
    assert {len(x) for _, x in seen["c", 0]} == {4}  # of 6: an item of three is left out
    label = flow_graph.ops[1].label
    of_ranks = [line for (name, _), outcome in out.items() for line in outcome.lines if name == "b"]
    for step in range(6):
        there = joined([line for line in lines if (line.role, line.step) == ("b", step)]).sums[label]
        here = joined(settled([line for line in of_ranks if line.step == step])).sums[label]
        assert here == there == {"rows": 12, "rows_left_out": 4}


def test_an_exception_names_call_and_step_with_the_users_frames_only(flow, role):
    graph, edge = flow

    def take(self, x):
        raise RuntimeError(f"at {x[0]}")

    roles = {"a": (lambda: role(make=lambda self: [7]), 1), "b": (lambda: role(take=take), 1)}
    with pytest.raises(OperatorFailed, match=r"b\.take at step 0: RuntimeError: at 7") as caught:
        inline(graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)]), roles, 1)
    assert "rolemesh_inline" not in user_traceback(caught.value.error, ENGINE)
    assert "in take" in user_traceback(caught.value.error, ENGINE)


def test_a_producer_without_lag_runs_before_a_consumer_that_the_flow_names_first(flow, role):
    graph, edge = flow
    flow_graph = graph(("b", "take", None), ("a", "make", Split()), edges=[edge(0, 1, 0)])
    roles = {
        "b": (lambda: role(take=lambda self, x: self.seen.append(x)), 1),
        "a": (lambda: role(make=lambda self: [self.ctx.step]), 1),
    }
    seen, _ = inline(flow_graph, roles, 3)
    assert seen["b", 0] == [[0], [1], [2]]


def test_each_input_is_a_copy_of_its_own_also_a_large_tensor(flow, role):
    import torch

    graph, edge = flow
    flow_graph = graph(
        ("a", "make", Broadcast()),
        ("b", "write", None),
        ("b", "look", None),
        edges=[
            edge(0, 0, 1, src_partition=Broadcast(), dst_partition=Broadcast()),
            edge(1, 0, 2, src_partition=Broadcast(), dst_partition=Broadcast()),
        ],
    )

    def write(self, x):
        self.seen.append(int(x.sum()))
        x.zero_()

    make = lambda self: torch.ones(1 << 18)  # noqa: E731
    look = lambda self, x: self.seen.append(int(x.sum()))  # noqa: E731
    seen, _ = inline(flow_graph, {"a": (lambda: role(make=make), 1), "b": (lambda: role(write=write, look=look), 2)}, 1)
    assert seen["b", 0] == seen["b", 1] == [1 << 18, 1 << 18]
